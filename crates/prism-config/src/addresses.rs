//! Addresses of both families. A field of the file takes one as a string, or several as a list.
//!
//! A single address is written as a string, which a release without IPv6 reads.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most addresses of the service.
pub const MAX_SERVICE_ADDRESSES: usize = 16;

/// The name of an address's family, for people.
pub fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// The addresses of one host: at most one of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddrs {
    /// Its IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl HostAddrs {
    /// The address of the family of `peer`.
    pub fn of(&self, peer: IpAddr) -> Option<IpAddr> {
        match peer {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// The IPv4 address, or else the IPv6 address.
    pub fn first(&self) -> Option<IpAddr> {
        self.iter().next()
    }

    /// All addresses, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.v4.map(IpAddr::V4).into_iter();
        v4.chain(self.v6.map(IpAddr::V6))
    }

    /// Whether the host has no address.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// Whether this is an address of the host.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.of(address) == Some(address)
    }

    /// The addresses by which this host and `other` talk: those of the first family that both
    /// have.
    pub fn towards(&self, other: &Self) -> Option<(IpAddr, IpAddr)> {
        self.iter().find_map(|own| Some((own, other.of(own)?)))
    }

    fn add(&mut self, address: IpAddr) -> Result<(), String> {
        let before = self.of(address);
        match address {
            IpAddr::V4(v4) => self.v4 = Some(v4),
            IpAddr::V6(v6) => self.v6 = Some(v6),
        }
        match before {
            Some(before) => Err(two_of_one_family(before, address)),
            None => Ok(()),
        }
    }
}

fn two_of_one_family(one: impl Display, other: impl Display) -> String {
    format!("{one} and {other} are of one family; give one address of each family at most")
}

impl<A: Into<IpAddr>> From<A> for HostAddrs {
    fn from(address: A) -> Self {
        match address.into() {
            IpAddr::V4(v4) => Self {
                v4: Some(v4),
                v6: None,
            },
            IpAddr::V6(v6) => Self {
                v4: None,
                v6: Some(v6),
            },
        }
    }
}

/// The addresses of the switch for its nodes: one port, and at most one address of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlAddrs {
    /// The addresses.
    pub hosts: HostAddrs,
    /// The port at each of them.
    pub port: u16,
}

impl ControlAddrs {
    /// The address of the family of `peer`.
    pub fn of(&self, peer: IpAddr) -> Option<SocketAddr> {
        let host = self.hosts.of(peer)?;
        Some(SocketAddr::new(host, self.port))
    }

    /// All addresses, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let port = self.port;
        self.hosts.iter().map(move |ip| SocketAddr::new(ip, port))
    }

    /// The address by which a node with these addresses talks to the switch, after its own.
    pub fn from_node(&self, node: &HostAddrs) -> Option<(IpAddr, SocketAddr)> {
        let (own, switch) = node.towards(&self.hosts)?;
        Some((own, SocketAddr::new(switch, self.port)))
    }
}

impl<A: Into<SocketAddr>> From<A> for ControlAddrs {
    fn from(address: A) -> Self {
        let address = address.into();
        Self {
            hosts: address.ip().into(),
            port: address.port(),
        }
    }
}

/// The addresses of a service, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAddrs(Vec<SocketAddr>);

impl ServiceAddrs {
    /// All addresses.
    pub fn iter(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.0.iter().copied()
    }

    /// The first address.
    pub fn first(&self) -> Option<SocketAddr> {
        self.iter().next()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is an address of the service.
    pub fn contains(&self, address: SocketAddr) -> bool {
        self.0.contains(&address)
    }

    /// The addresses without ports, each once.
    pub fn hosts(&self) -> Vec<IpAddr> {
        let mut hosts = Vec::with_capacity(self.0.len());
        for address in self.iter() {
            if !hosts.contains(&address.ip()) {
                hosts.push(address.ip());
            }
        }
        hosts
    }

    /// The same hosts at another port.
    #[must_use]
    pub fn at_port(&self, port: u16) -> Self {
        let hosts = self.hosts().into_iter();
        hosts.map(|host| SocketAddr::new(host, port)).collect()
    }
}

impl FromIterator<SocketAddr> for ServiceAddrs {
    fn from_iter<T: IntoIterator<Item = SocketAddr>>(addresses: T) -> Self {
        Self(addresses.into_iter().collect())
    }
}

impl<A: Into<SocketAddr>> From<A> for ServiceAddrs {
    fn from(address: A) -> Self {
        Self(vec![address.into()])
    }
}

macro_rules! shown {
    ($($addresses:ident),*) => {$(
        impl Display for $addresses {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                listed(f, self.iter())
            }
        }

        impl Serialize for $addresses {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serialize(self.iter(), serializer)
            }
        }
    )*};
}

shown!(HostAddrs, ControlAddrs, ServiceAddrs);

fn listed(
    f: &mut fmt::Formatter<'_>,
    mut addresses: impl Iterator<Item = impl Display>,
) -> fmt::Result {
    if let Some(first) = addresses.next() {
        write!(f, "{first}")?;
    }
    addresses.try_for_each(|address| write!(f, ", {address}"))
}

fn serialize<S: Serializer, A: Display>(
    addresses: impl Iterator<Item = A>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let all: Vec<String> = addresses.map(|address| address.to_string()).collect();
    match all.as_slice() {
        [one] => serializer.serialize_str(one),
        all => serializer.collect_seq(all),
    }
}

impl<'de> Deserialize<'de> for HostAddrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all: Vec<IpAddr> = deserializer.deserialize_any(OneOrMany::new(2))?;
        let mut addresses = Self::default();
        for address in all {
            addresses.add(address).map_err(D::Error::custom)?;
        }
        Ok(addresses)
    }
}

impl<'de> Deserialize<'de> for ControlAddrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all: Vec<SocketAddr> = deserializer.deserialize_any(OneOrMany::new(2))?;
        let mut control = Self::default();
        for address in all {
            if !control.hosts.is_empty() && control.port != address.port() {
                let one = control.port;
                let other = address.port();
                let fault = format!("ports {one} and {other} differ; use one port for both");
                return Err(D::Error::custom(fault));
            }
            control.port = address.port();
            let added = control.hosts.add(address.ip());
            added.map_err(D::Error::custom)?;
        }
        Ok(control)
    }
}

impl<'de> Deserialize<'de> for ServiceAddrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = OneOrMany::new(MAX_SERVICE_ADDRESSES);
        deserializer.deserialize_any(visitor).map(Self)
    }
}

/// An address of one of the fields.
pub(crate) trait Address: FromStr {
    const FORM: &'static str;
    /// The IPv4 address that an IPv6 address stands for, if it does.
    fn mapped(&self) -> Option<IpAddr>;
}

impl Address for IpAddr {
    const FORM: &'static str = "an address, as in \"10.0.0.11\" or \"fd00::11\"";
    fn mapped(&self) -> Option<IpAddr> {
        let canonical = self.to_canonical();
        (canonical != *self).then_some(canonical)
    }
}

impl Address for SocketAddr {
    const FORM: &'static str =
        "an address with a port, as in \"10.0.0.1:80\" or \"[2001:db8::1]:80\"";
    fn mapped(&self) -> Option<IpAddr> {
        self.ip().mapped()
    }
}

/// Reads one string, or a list of at most `max` strings.
struct OneOrMany<A> {
    max: usize,
    of: PhantomData<A>,
}

impl<A> OneOrMany<A> {
    fn new(max: usize) -> Self {
        Self {
            max,
            of: PhantomData,
        }
    }
}

/// An element of a list, so that a fault names the place in it.
struct One<A>(A);

impl<'de, A: Address> Deserialize<'de> for One<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parse(&String::deserialize(deserializer)?).map(Self)
    }
}

fn parse<A: Address, E: Error>(text: &str) -> Result<A, E> {
    let address = text
        .parse::<A>()
        .map_err(|_| E::custom(format!("{text:?} is not {}", A::FORM)))?;
    match address.mapped() {
        Some(v4) => {
            let fault = format!("{text:?} is the IPv4 address {v4}; write it as such");
            Err(E::custom(fault))
        }
        None => Ok(address),
    }
}

impl<'de, A: Address> Visitor<'de> for OneOrMany<A> {
    type Value = Vec<A>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of them", A::FORM)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<A>, E> {
        parse(text).map(|address| vec![address])
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<A>, S::Error> {
        let mut all = Vec::new();
        while let Some(One(address)) = list.next_element()? {
            if all.len() == self.max {
                let fault = format!("has more than {} addresses; remove some", self.max);
                return Err(S::Error::custom(fault));
            }
            all.push(address);
        }
        Ok(all)
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
