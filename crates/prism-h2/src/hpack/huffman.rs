//! The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B). It is canonical, so the length
//! of each symbol's code says all.

use super::HpackError;

/// The symbol that ends a text. No text has it.
const END: usize = 256;
const SYMBOLS: usize = END + 1;
const MAX_BITS: u32 = 30;
/// Codes of at most so many bits are found by one look.
const FAST_BITS: u32 = 9;

/// Bits of the code of each byte, and of the end.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, //
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, //
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, //
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
    30, // the end
];

/// A symbol and the bits of its code.
#[derive(Clone, Copy)]
struct Symbol {
    /// 0: the code is longer than [`FAST_BITS`].
    bits: u32,
    number: u16,
}

/// Codes of one length.
#[derive(Clone, Copy)]
struct Codes {
    /// The first of them.
    first: u32,
    /// The place of its symbol in [`Code::symbols`].
    place: usize,
    count: usize,
}

struct Code {
    /// By symbol.
    codes: [u32; SYMBOLS],
    /// The symbols by the order of their codes.
    symbols: [u16; SYMBOLS],
    /// By length.
    of_length: [Codes; MAX_BITS as usize + 1],
    /// By the first bits of a code.
    fast: [Symbol; 1 << FAST_BITS],
}

static CODE: Code = Code::new();

impl Code {
    #[allow(clippy::indexing_slicing, reason = "the compiler runs it")]
    const fn new() -> Self {
        let none = Codes {
            first: 0,
            place: 0,
            count: 0,
        };
        let unknown = Symbol { bits: 0, number: 0 };
        let mut made = Self {
            codes: [0; SYMBOLS],
            symbols: [0; SYMBOLS],
            of_length: [none; MAX_BITS as usize + 1],
            fast: [unknown; 1 << FAST_BITS],
        };
        let (mut code, mut place, mut bits) = (0, 0, 1);
        while bits <= MAX_BITS {
            code <<= 1;
            made.of_length[bits as usize] = Codes {
                first: code,
                place,
                count: 0,
            };
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as u32 == bits {
                    made.codes[symbol] = code;
                    made.symbols[place] = symbol as u16;
                    made.of_length[bits as usize].count += 1;
                    if bits <= FAST_BITS {
                        let spare = FAST_BITS - bits;
                        let mut rest = 0;
                        while rest < 1 << spare {
                            made.fast[(code << spare) as usize + rest] = Symbol {
                                bits,
                                number: symbol as u16,
                            };
                            rest += 1;
                        }
                    }
                    code += 1;
                    place += 1;
                }
                symbol += 1;
            }
            bits += 1;
        }
        made
    }

    /// The symbol whose code begins the 30 bits of `window`.
    fn find(&self, window: u32) -> Symbol {
        let first = (window >> (MAX_BITS - FAST_BITS)) as usize;
        if let Some(symbol) = self.fast.get(first).filter(|symbol| symbol.bits > 0) {
            return *symbol;
        }
        for bits in FAST_BITS + 1..=MAX_BITS {
            let Some(codes) = self.of_length.get(bits as usize) else {
                break;
            };
            let offset = (window >> (MAX_BITS - bits)).wrapping_sub(codes.first) as usize;
            if offset < codes.count
                && let Some(number) = self.symbols.get(codes.place + offset)
            {
                return Symbol {
                    bits,
                    number: *number,
                };
            }
        }
        // All ones: the code is complete.
        Symbol {
            bits: MAX_BITS,
            number: END as u16,
        }
    }
}

/// Appends the text that `input` encodes.
///
/// # Errors
/// It has the end's code, or its padding is longer than 7 bits or not that code's beginning.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let mut bytes = input.iter();
    // The last `held` bits are not decoded yet.
    let (mut bits, mut held) = (0_u64, 0_u32);
    loop {
        while held <= 32
            && let Some(byte) = bytes.next()
        {
            bits = bits << 8 | u64::from(*byte);
            held += 8;
        }
        if held == 0 {
            return Ok(());
        }
        // Behind the input come ones.
        let window = match held.checked_sub(MAX_BITS) {
            Some(more) => bits >> more,
            None => ((bits + 1) << (MAX_BITS - held)) - 1,
        };
        let window = window as u32 & ((1 << MAX_BITS) - 1);
        let symbol = CODE.find(window);
        if symbol.bits > held {
            let is_padding = held < 8 && usize::from(symbol.number) == END;
            return is_padding.then_some(()).ok_or(HpackError::Huffman);
        }
        let byte = u8::try_from(symbol.number).map_err(|_| HpackError::Huffman)?;
        out.push(byte);
        held -= symbol.bits;
        bits &= (1 << held) - 1;
    }
}

/// The length in bytes of the encoded form of a text.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let lengths = text.iter().map(|byte| LENGTHS.get(usize::from(*byte)));
    let bits: usize = lengths.flatten().map(|bits| usize::from(*bits)).sum();
    bits.div_ceil(8)
}

/// Appends the encoded form of a text.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut held) = (0_u64, 0_u32);
    for byte in text {
        let symbol = usize::from(*byte);
        let (Some(code), Some(length)) = (CODE.codes.get(symbol), LENGTHS.get(symbol)) else {
            continue;
        };
        bits = bits << length | u64::from(*code);
        held += u32::from(*length);
        while let Some(rest) = held.checked_sub(8) {
            out.push((bits >> rest) as u8);
            held = rest;
        }
        bits &= (1 << held) - 1;
    }
    if held > 0 {
        let spare = 8 - held;
        out.push((bits << spare) as u8 | ((1 << spare) - 1) as u8);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn decoded(input: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(input, &mut out).ok().map(|()| out)
    }

    #[test]
    fn the_code_is_complete_and_has_the_codes_of_the_standard() {
        let sum: f64 = LENGTHS
            .iter()
            .map(|bits| 0.5_f64.powi((*bits).into()))
            .sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        for (symbol, code) in [(b'0', 0x0), (b'a', 0x3), (b'z', 0x7b), (b'\n', 0x3fff_fffc)] {
            assert_eq!(CODE.codes.get(usize::from(symbol)), Some(&code));
        }
        assert_eq!(CODE.codes.get(END), Some(&0x3fff_ffff));
    }

    #[test]
    fn texts_are_decoded_as_they_were_encoded() {
        let mut rng = fastrand::Rng::with_seed(7);
        for round in 0..2_000 {
            let text: Vec<u8> = (0..rng.usize(..80))
                .map(|_| {
                    if round % 2 == 0 {
                        rng.u8(..)
                    } else {
                        rng.u8(b' '..b'~')
                    }
                })
                .collect();
            let mut encoded = Vec::new();
            encode(&text, &mut encoded);
            assert_eq!(encoded.len(), encoded_len(&text));
            assert_eq!(decoded(&encoded), Some(text));
        }
    }

    #[test]
    fn padding_is_short_and_of_ones_and_no_text_has_the_end() {
        assert_eq!(decoded(b"\x1f").unwrap(), b"a");
        assert_eq!(decoded(b"\x1e"), None);
        assert_eq!(decoded(b"\x1f\xff"), None);
        assert_eq!(decoded(b"\xff"), None);
        assert_eq!(decoded(b"\xff\xff\xff\xff"), None);
        assert_eq!(decoded(b"\xff\xff\xff\xfc"), None);
        assert_eq!(decoded(b""), Some(Vec::new()));
    }
}
