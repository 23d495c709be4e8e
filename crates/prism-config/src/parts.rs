//! The parts of a file, each of which concerns one of its services.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::model::{Config, ConfigFile, Node, S3};
use crate::service::{Service, ServiceLimits};

impl ConfigFile {
    /// The parts of all services, in the order of the file. Settings of a service replace those of
    /// the whole file, and other services' backends are left out.
    pub fn parts(&self) -> Vec<Config> {
        let services = self.service.iter();
        services.map(|service| self.part_of(service)).collect()
    }

    /// The parts that node `name` serves: a backend's one, or those of all services.
    pub fn parts_at(&self, name: &str) -> Vec<Config> {
        let mut parts = self.parts();
        parts.retain(|part| part.node(name).is_some());
        parts
    }

    /// The part of the service called `name`. A service without a name is that with the name of
    /// the cluster.
    pub fn part(&self, name: &str) -> Option<Config> {
        let mut services = self.service.iter();
        let is_main = |name: &str| is_main_name(name, &self.cluster.name);
        let is_it = |own: &str| own == name || is_main(own) && is_main(name);
        let service = services.find(|service| is_it(&service.name))?;
        Some(self.part_of(service))
    }

    /// Whether `node` is a backend of a service with upstreams alone, and so has no store.
    pub fn has_upstream(&self, node: &Node) -> bool {
        let mut services = self
            .service
            .iter()
            .filter(|service| !service.keeps_objects());
        node.is_backend() && services.any(|service| service.has_node(node))
    }

    /// The beginning of the keys of the first service in etcd.
    pub fn etcd_prefix(&self) -> Option<String> {
        etcd_prefix(&self.cluster, self.service.first())
    }

    fn part_of(&self, service: &Service) -> Config {
        let whole = self.service.are_several().then(|| Arc::new(self.clone()));
        let mut service = service.clone();
        let mut part = Config {
            file: self.file.clone(),
            whole,
            cluster: self.cluster.clone(),
            service: Service::default(),
            switch: self.switch.clone(),
            nodes: self.nodes.clone(),
            peers: self.peers.clone(),
            store: self.store.clone(),
            limits: self.limits.clone(),
            s3: self.s3.clone(),
            log: self.log.clone(),
            trace: self.trace.clone(),
            admin: self.admin.clone(),
        };
        let keeps_objects = service.keeps_objects();
        part.nodes.retain(|node| service.has_node(node));
        if let Some(port) = service.peer_port.take() {
            part.peers.port = port;
        }
        let id = service.control_key_id.take();
        let file = service.control_key_file.take();
        if let Some(switch) = &mut part.switch {
            switch.key_id = id.unwrap_or(switch.key_id);
            switch.key_file = file.unwrap_or_else(|| std::mem::take(&mut switch.key_file));
        }
        if let Some(replicas) = service.replicas.take_if(|_| keeps_objects) {
            part.cluster.replicas = replicas;
        }
        if let Some(min) = service.min_replicas.take_if(|_| keeps_objects) {
            part.cluster.min_replicas = Some(min);
        }
        if let Some(s3) = service.s3.take_if(|_| keeps_objects) {
            part.s3 = s3;
        }
        if let Some(ServiceLimits {
            connections,
            unauthenticated_per_address,
            idle_timeout_s,
            max_object_bytes,
        }) = service.limits.take()
        {
            let limits = &mut part.limits;
            replace(&mut limits.connections, connections);
            let newcomers = &mut limits.unauthenticated_per_address;
            replace(newcomers, unauthenticated_per_address);
            replace(&mut limits.idle_timeout_s, idle_timeout_s);
            replace(&mut limits.max_object_bytes, max_object_bytes);
        }
        if !keeps_objects {
            // It keeps no objects.
            (part.cluster.replicas, part.cluster.min_replicas) = (1, None);
            part.s3 = S3::default();
        }
        part.service = service;
        part
    }
}

impl Config {
    /// Whether this is the part of one of several services.
    pub fn is_of_several(&self) -> bool {
        self.whole.is_some()
    }

    /// The node called `name`, which may be another service's.
    pub fn node_of_file(&self, name: &str) -> Option<&Node> {
        match &self.whole {
            Some(file) => file.node(name),
            None => self.node(name),
        }
    }

    /// Whether the service of this part has the keys and sockets of a cluster with one service.
    fn is_main(&self) -> bool {
        is_main_name(&self.service.name, &self.cluster.name)
    }

    /// The beginning of all keys of this part in etcd.
    pub fn etcd_prefix(&self) -> Option<String> {
        etcd_prefix(&self.cluster, &self.service)
    }

    /// The Unix socket on which node `name` answers for the service of this part.
    pub fn admin_socket(&self, name: &str) -> PathBuf {
        let file = if self.shares_node(name) {
            format!("{name}.{}.sock", self.service.name)
        } else {
            format!("{name}.sock")
        };
        self.admin.socket_dir.join(file)
    }

    /// The same of all nodes that run on this host.
    pub fn sockets_here(&self) -> impl Iterator<Item = PathBuf> {
        let all = self.nodes.iter().map(|node| self.admin_socket(&node.name));
        all.filter(|socket| socket.exists())
    }

    /// The address at which node `name` answers HTTP with metrics and health of this part.
    pub fn admin_listen(&self, name: &str) -> Option<SocketAddr> {
        let is_backend = self.node(name).is_some_and(Node::is_backend);
        let own = self.service.admin_listen.filter(|_| !is_backend);
        if self.shares_node(name) {
            own
        } else {
            own.or(self.admin.listen)
        }
    }

    /// Whether the node also serves a service that has the node's own sockets.
    fn shares_node(&self, name: &str) -> bool {
        !self.is_main() && self.node(name).is_some_and(|node| !node.is_backend())
    }
}

impl Service {
    /// Whether the node serves this service.
    pub(crate) fn has_node(&self, node: &Node) -> bool {
        let is_of_all = !node.is_backend() || self.backends.is_empty();
        is_of_all || self.backends.contains(&node.name)
    }
}

/// The beginning of the keys of a service in etcd. No name of a cluster has a dot.
fn etcd_prefix(cluster: &Cluster, service: &Service) -> Option<String> {
    let prefix = &cluster.etcd.as_ref()?.prefix;
    let (cluster, name) = (&cluster.name, &service.name);
    Some(if is_main_name(name, cluster) {
        format!("{prefix}/{cluster}/")
    } else {
        format!("{prefix}/{cluster}.{name}/")
    })
}

/// Whether a service with this name has the keys and sockets of a cluster with one service.
fn is_main_name(name: &str, cluster: &str) -> bool {
    name.is_empty() || name == cluster
}

fn replace<T>(value: &mut T, own: Option<T>) {
    if let Some(own) = own {
        *value = own;
    }
}
