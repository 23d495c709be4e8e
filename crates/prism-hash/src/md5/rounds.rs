//! The rounds of MD5, for words of one message or of several.

/// A word of one message, or one word of each of several.
pub trait Words: Copy {
    /// The same word for each message.
    fn splat(word: u32) -> Self;
    /// The sum modulo 2^32.
    fn plus(self, other: Self) -> Self;
    /// The bits that are set in both.
    fn and(self, other: Self) -> Self;
    /// The bits that are not set in `other`.
    fn without(self, other: Self) -> Self;
    /// The bits that are set in any.
    fn or(self, other: Self) -> Self;
    /// The bits in which they differ.
    fn xor(self, other: Self) -> Self;
    /// Rotated to the left; `RIGHT` is 32 less `LEFT`.
    fn rotated<const LEFT: i32, const RIGHT: i32>(self) -> Self;
}

impl Words for u32 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        word
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self & other
    }

    #[inline(always)]
    fn without(self, other: Self) -> Self {
        self & !other
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self | other
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    fn rotated<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        self << LEFT | self >> RIGHT
    }
}

// The functions of the four rounds, added to a sum `x`.

#[inline(always)]
fn choose<W: Words>(x: W, b: W, c: W, d: W) -> W {
    x.plus(d.xor(b.and(c.xor(d))))
}

/// Adds the two terms, which share no bit. The first does not wait for `b`, the newest word.
#[inline(always)]
fn choose_by_last<W: Words>(x: W, b: W, c: W, d: W) -> W {
    x.plus(c.without(d)).plus(b.and(d))
}

#[inline(always)]
fn parity<W: Words>(x: W, b: W, c: W, d: W) -> W {
    x.plus(c.xor(d).xor(b))
}

#[inline(always)]
fn odd<W: Words>(x: W, b: W, c: W, d: W) -> W {
    x.plus(b.or(W::splat(u32::MAX).without(d)).xor(c))
}

/// Hashes one block of each message, whose words are `m`.
#[inline(always)]
pub fn compress<W: Words>(state: &mut [W; 4], m: &[W; 16]) {
    let before = *state;
    first(state, m);
    second(state, m);
    third(state, m);
    fourth(state, m);
    for (state, before) in state.iter_mut().zip(before) {
        *state = state.plus(before);
    }
}

/// Rows of four steps, after which the words of the state are in their places again. Each step
/// has its rotation, its word of the block, and the integer part of 2^32 |sin(step + 1)|.
macro_rules! four {
    ($state:ident $m:ident $f:ident $r0:literal $r1:literal $r2:literal $r3:literal:
     $($m0:literal $k0:literal, $m1:literal $k1:literal,
       $m2:literal $k2:literal, $m3:literal $k3:literal;)+) => {
        let [mut a, mut b, mut c, mut d] = *$state;
        $(
            four!(@ $m $f $r0 $m0 $k0, a b c d);
            four!(@ $m $f $r1 $m1 $k1, d a b c);
            four!(@ $m $f $r2 $m2 $k2, c d a b);
            four!(@ $m $f $r3 $m3 $k3, b c d a);
        )+
        *$state = [a, b, c, d];
    };
    (@ $m:ident $f:ident $r:literal $n:literal $k:literal,
     $a:ident $b:ident $c:ident $d:ident) => {
        let x = $a.plus($m[$n].plus(W::splat($k)));
        $a = $f(x, $b, $c, $d).rotated::<$r, { 32 - $r }>().plus($b);
    };
}

// The four rounds of section 3.4.

#[inline(always)]
pub(crate) fn first<W: Words>(state: &mut [W; 4], m: &[W; 16]) {
    four!(state m choose 7 12 17 22:
        0 0xd76a_a478, 1 0xe8c7_b756, 2 0x2420_70db, 3 0xc1bd_ceee;
        4 0xf57c_0faf, 5 0x4787_c62a, 6 0xa830_4613, 7 0xfd46_9501;
        8 0x6980_98d8, 9 0x8b44_f7af, 10 0xffff_5bb1, 11 0x895c_d7be;
        12 0x6b90_1122, 13 0xfd98_7193, 14 0xa679_438e, 15 0x49b4_0821;
    );
}

#[inline(always)]
pub(crate) fn second<W: Words>(state: &mut [W; 4], m: &[W; 16]) {
    four!(state m choose_by_last 5 9 14 20:
        1 0xf61e_2562, 6 0xc040_b340, 11 0x265e_5a51, 0 0xe9b6_c7aa;
        5 0xd62f_105d, 10 0x0244_1453, 15 0xd8a1_e681, 4 0xe7d3_fbc8;
        9 0x21e1_cde6, 14 0xc337_07d6, 3 0xf4d5_0d87, 8 0x455a_14ed;
        13 0xa9e3_e905, 2 0xfcef_a3f8, 7 0x676f_02d9, 12 0x8d2a_4c8a;
    );
}

#[inline(always)]
pub(crate) fn third<W: Words>(state: &mut [W; 4], m: &[W; 16]) {
    four!(state m parity 4 11 16 23:
        5 0xfffa_3942, 8 0x8771_f681, 11 0x6d9d_6122, 14 0xfde5_380c;
        1 0xa4be_ea44, 4 0x4bde_cfa9, 7 0xf6bb_4b60, 10 0xbebf_bc70;
        13 0x289b_7ec6, 0 0xeaa1_27fa, 3 0xd4ef_3085, 6 0x0488_1d05;
        9 0xd9d4_d039, 12 0xe6db_99e5, 15 0x1fa2_7cf8, 2 0xc4ac_5665;
    );
}

#[inline(always)]
pub(crate) fn fourth<W: Words>(state: &mut [W; 4], m: &[W; 16]) {
    four!(state m odd 6 10 15 21:
        0 0xf429_2244, 7 0x432a_ff97, 14 0xab94_23a7, 5 0xfc93_a039;
        12 0x655b_59c3, 3 0x8f0c_cc92, 10 0xffef_f47d, 1 0x8584_5dd1;
        8 0x6fa8_7e4f, 15 0xfe2c_e6e0, 6 0xa301_4314, 13 0x4e08_11a1;
        4 0xf753_7e82, 11 0xbd3a_f235, 2 0x2ad7_d2bb, 9 0xeb86_d391;
    );
}
