use super::*;

type Map = OrderedMap<u32, u64>;

impl<K, V> OrderedMap<K, V> {
    /// The memory of all entries, with that of their pages.
    fn bytes(&self) -> usize {
        let places: usize = self.pages.values().map(Vec::capacity).sum();
        places * size_of::<(K, V)>() + self.pages.len() * PAGE_BYTES
    }
}

fn all(map: &Map) -> Vec<(u32, u64)> {
    let next = |after: Option<u32>| map.next(after).map(|(key, value)| (*key, *value));
    std::iter::successors(next(None), |(key, _)| next(Some(*key))).collect()
}

fn check_memory(map: &Map, when: &str) {
    let (bytes, most) = (map.bytes(), most_bytes(size_of::<(u32, u64)>()));
    assert!(
        bytes <= map.len() * most + 2 * (MAX_PAGE * 16 + PAGE_BYTES),
        "{when}: {bytes} bytes of {} entries, {most} each at most",
        map.len()
    );
}

#[test]
fn it_is_a_map_in_order() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for range in [50, 1_000, 5_000] {
        let (mut map, mut model) = (Map::default(), BTreeMap::new());
        for step in 0..30_000u64 {
            let key = random.u32(0..range);
            // Phases that grow and phases that shrink.
            if random.u64(0..10) < if step / 5_000 % 2 == 0 { 7 } else { 3 } {
                map.insert(key, step);
                model.insert(key, step);
            } else {
                map.remove(&key);
                model.remove(&key);
            }
            assert_eq!(map.len(), model.len());
            assert_eq!(map.get(&key), model.get(&key));
            let after = random.u32(0..range);
            let behind = model.range((Excluded(after), Unbounded)).next();
            assert_eq!(map.next(Some(after)), behind);
        }
        assert_eq!(all(&map), model.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn no_order_of_changes_takes_more_memory() {
    const ENTRIES: u32 = 40_000;
    let filled = |keys: &mut dyn Iterator<Item = u32>| {
        let mut map = Map::default();
        keys.for_each(|key| map.insert(key, 1));
        map
    };
    let mixed = |n: u32| n.wrapping_mul(0x9e37_79b1);
    for (order, mut map) in [
        ("ascending", filled(&mut (0..ENTRIES))),
        ("descending", filled(&mut (0..ENTRIES).rev())),
        ("mixed", filled(&mut (0..ENTRIES).map(mixed))),
    ] {
        check_memory(&map, order);
        let keys: Vec<u32> = all(&map).into_iter().map(|(key, _)| key).collect();
        // The longest pages that are not joined, and then ever shorter ones.
        for keep in [2, 3, 10, 50, 129] {
            let gone = |(n, _): &(usize, &u32)| !n.is_multiple_of(keep);
            for (_, key) in keys.iter().enumerate().filter(gone) {
                map.remove(key);
            }
            check_memory(&map, &format!("{order}, one of {keep}"));
        }
        keys.iter().for_each(|key| map.remove(key));
        assert_eq!((map.len(), map.next(None)), (0, None));
        assert!(map.pages.len() <= 1);
    }
}
