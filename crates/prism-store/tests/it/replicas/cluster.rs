//! Three stores as replicas, and the network between them.

use super::*;

pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three stores, and the network between them.
pub(super) struct Cluster {
    pub(super) dirs: Vec<tempfile::TempDir>,
    pub(super) stores: Vec<Mutex<Option<Arc<Store>>>>,
    /// Whether messages about outcomes are lost.
    pub(super) silent: AtomicBool,
    pub(super) placement: Placement,
    pub(super) replicas: usize,
    pub(super) durability: Durability,
}

/// One node's connection to the others.
struct Ways {
    cluster: Weak<Cluster>,
    name: &'static str,
}

impl Cluster {
    pub(super) fn new(replicas: usize) -> Arc<Self> {
        Self::with(replicas, Durability::Fsync)
    }

    pub(super) fn with(replicas: usize, durability: Durability) -> Arc<Self> {
        let names = NAMES.iter().map(|name| name.parse().unwrap());
        let cluster = Arc::new(Self {
            dirs: NAMES.iter().map(|_| tempfile::tempdir().unwrap()).collect(),
            stores: NAMES.iter().map(|_| Mutex::new(None)).collect(),
            silent: AtomicBool::new(false),
            placement: Placement::new(&names.collect()),
            replicas,
            durability,
        });
        for name in NAMES {
            cluster.start(name);
            let taken =
                cluster
                    .store(name)
                    .buckets()
                    .accept_record("b", &agreed(1, None), Proof::TRUSTED);
            taken.unwrap();
        }
        cluster
    }

    pub(super) fn start(self: &Arc<Self>, name: &'static str) {
        let at = NAMES.iter().position(|n| *n == name).unwrap();
        let config = Config {
            reserve_bytes: 0,
            node: name.into(),
            durability: self.durability,
            ..Config::default()
        };
        let store = Arc::new(Store::open(self.dirs[at].path(), config).unwrap());
        let cluster = Arc::downgrade(self);
        store.replicate(Arc::new(Ways { cluster, name }));
        *self.stores[at].lock().unwrap() = Some(store);
    }

    pub(super) fn stop(&self, name: &str) {
        let at = NAMES.iter().position(|n| *n == name).unwrap();
        drop(self.stores[at].lock().unwrap().take());
    }

    pub(super) fn reach(&self, name: &str) -> Option<Arc<Store>> {
        let at = NAMES.iter().position(|n| *n == name).unwrap();
        self.stores[at].lock().unwrap().clone()
    }

    pub(super) fn store(&self, name: &str) -> Arc<Store> {
        self.reach(name).unwrap()
    }

    pub(super) fn owners(&self, key: &str) -> Vec<String> {
        let owners = self.placement.owners("b", key, self.replicas);
        owners.map(|name| name.as_str().to_owned()).collect()
    }

    pub(super) fn primary(&self, key: &str) -> Arc<Store> {
        self.store(&self.owners(key)[0])
    }

    /// Every replica asks for the outcomes of its open changes.
    pub(super) fn settle(&self) {
        for store in NAMES.iter().filter_map(|name| self.reach(name)) {
            let open = store.open_changes().older_than(Duration::ZERO, None);
            let told = open.into_iter().filter_map(|(scope, stamp)| {
                let primary = self.reach(&self.owners(&scope.key)[0])?;
                let standing = primary.open_changes().standing(&scope, stamp).unwrap();
                Some((scope, stamp, standing))
            });
            store.open_changes().settle(told.collect(), 1).unwrap();
        }
    }

    /// The object that all replicas of a key have.
    pub(super) fn agreed(&self, key: &str) -> Option<Vec<u8>> {
        let mut found = self.owners(key).into_iter().map(|name| {
            let store = self.store(&name);
            assert_eq!(
                store.open_changes().of_object("b", key),
                None,
                "{key} at {name}"
            );
            let object = store.get("b", key).unwrap();
            if object.is_some() {
                store.verify("b", key).unwrap();
            }
            object.map(|object| (object.stamp, object.meta.clone(), read(object)))
        });
        let first = found.next().unwrap();
        assert!(found.all(|other| other == first), "{key} differs");
        first.map(|(_, _, data)| data)
    }
}

impl Replicas for Ways {
    fn epoch(&self) -> u64 {
        1
    }

    fn others(&self, bucket: &str, key: &str) -> Result<Vec<String>, Error> {
        assert_eq!(bucket, "b");
        let mut owners = self.cluster.upgrade().unwrap().owners(key);
        match owners.remove(0) == self.name {
            true => Ok(owners),
            false => Err(Error::NotPrimary),
        }
    }

    fn prepare(
        &self,
        others: &[String],
        prepare: Prepare,
        bytes: Bytes,
    ) -> Receiver<Result<(), Error>> {
        let (answer, answered) = mpsc::channel();
        let (cluster, others) = (self.cluster.upgrade().unwrap(), others.to_vec());
        thread::spawn(move || {
            let data = match bytes {
                Bytes::None => Vec::new(),
                Bytes::Inline(data) => data,
                Bytes::File(file) => {
                    let mut data = vec![0; prepare.body_len().try_into().unwrap()];
                    file.read_exact_at(&mut data, 0).unwrap();
                    data
                }
            };
            let done = others.iter().try_for_each(|name| {
                let unreplicated = |why: String, refusal| Error::Unreplicated {
                    node: name.clone(),
                    why: why.into(),
                    refusal,
                };
                let unreachable = || unreplicated("is out of reach".into(), None);
                let store = cluster.reach(name).ok_or_else(unreachable)?;
                let prepared = store
                    .open_changes()
                    .begin_prepare(prepare.clone())
                    .and_then(|mut writer| {
                        writer.write(&data)?;
                        writer.prepare()
                    });
                prepared.map_err(|error| match error {
                    Error::Refused(refusal) => {
                        unreplicated(format!("refused: {refusal}"), Some(refusal))
                    }
                    error => unreplicated(format!("failed: {error}"), None),
                })
            });
            let _ = answer.send(done);
        });
        answered
    }

    fn decided(&self, others: Vec<String>, decided: Decided) {
        let cluster = self.cluster.upgrade().unwrap();
        if cluster.silent.load(Ordering::Relaxed) {
            return;
        }
        for store in others.iter().filter_map(|name| cluster.reach(name)) {
            store.open_changes().decided(decided.clone()).unwrap();
        }
    }
}
