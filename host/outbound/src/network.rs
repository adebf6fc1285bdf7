//! Network rules: the addresses that requests of this host may go to. They apply to the address of every connection
//! when it is opened, however the address was found. No response changes them.

mod entry;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Class, Closed, Private, class};
pub use entry::{InvalidEntry, NetworkEntry};

/// Extent to which a part of the network may be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// All addresses.
    #[default]
    Open,
    /// The listed addresses.
    Listed,
}

/// Network rules: the extent to which public and private networks may be reached, and the list for restricted ones.
/// Addresses that are always [forbidden](Forbidden) stay so under any rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct NetworkRules {
    /// The public network.
    pub public: Reach,
    /// Private networks, including this machine.
    pub private: Reach,
    /// The list for restricted networks.
    pub allow: Vec<NetworkEntry>,
}

/// The host and port of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAndPort<'a> {
    /// The name of the host, or `None` for an address.
    pub name: Option<&'a str>,
    /// The port.
    pub port: u16,
}

/// Error of a request to a forbidden address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// The address, if the request had it instead of a name. The addresses of a name are not revealed: a caller that
    /// may send requests to names could find out what is in a network.
    literal: Option<IpAddr>,
    rule: Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Always(Closed),
    PrivateNotListed(Private),
    PublicNotListed,
}

impl std::error::Error for Forbidden {}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.literal {
            Some(address) => write!(f, "{address} is {}", self.rule),
            None => write!(f, "its name leads to {}", self.rule),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NO_ENTRY: &str = "and the operator's list of what may be reached has no entry for it";
        match self {
            Self::Always(closed) => write!(f, "{closed}; no request of this host goes there"),
            Self::PrivateNotListed(private) => write!(f, "{private}, {NO_ENTRY}"),
            Self::PublicNotListed => write!(f, "a public address, {NO_ENTRY}"),
        }
    }
}

impl Forbidden {
    /// Formats the error without an address, for guests.
    pub(super) fn without_address(&self) -> String {
        match self.literal {
            Some(_) => format!("its address is {}", self.rule),
            None => self.to_string(),
        }
    }
}

impl NetworkRules {
    /// Returns rules that allow all addresses except those that are always forbidden.
    pub fn open() -> Self {
        Self::default()
    }

    /// Returns rules that allow the public network and the listed private addresses.
    pub fn allow_list(allow: Vec<NetworkEntry>) -> Self {
        Self { public: Reach::Open, private: Reach::Listed, allow }
    }

    /// Checks a URL, as far as that is possible before its name is resolved. Call this when a URL is configured or
    /// received, so that the error is reported immediately.
    pub fn check(&self, url: &Url) -> Result<(), Forbidden> {
        let Some(address) = literal(url) else { return Ok(()) };
        self.check_address(
            HostAndPort { name: None, port: url.port_or_known_default().unwrap_or_default() },
            address,
        )
    }

    /// Checks that a connection to an address may be opened for a request with this host and port.
    pub(super) fn check_address(&self, target: HostAndPort<'_>, address: IpAddr) -> Result<(), Forbidden> {
        let listed = || self.allow.iter().any(|entry| entry.is_of(target, address));
        let rule = match class(address) {
            Class::Closed(closed) => Rule::Always(closed),
            Class::Public if self.public == Reach::Open || listed() => return Ok(()),
            Class::Private(_) if self.private == Reach::Open || listed() => return Ok(()),
            Class::Public => Rule::PublicNotListed,
            Class::Private(private) => Rule::PrivateNotListed(private),
        };
        Err(Forbidden { literal: target.name.is_none().then_some(address), rule })
    }

    /// Returns the allowed addresses of a host. Fails if it has addresses and none is allowed.
    pub(super) fn allowed(
        &self,
        target: HostAndPort<'_>,
        found: impl Iterator<Item = SocketAddr>,
    ) -> Result<Vec<SocketAddr>, Forbidden> {
        let (mut allowed, mut forbidden) = (Vec::new(), None);
        for address in found {
            match self.check_address(target, address.ip()) {
                Ok(()) => allowed.push(address),
                Err(why) => forbidden = Some(why),
            }
        }
        match forbidden {
            Some(why) if allowed.is_empty() => Err(why),
            _ => Ok(allowed),
        }
    }
}

/// Returns the host of a URL if it is an address instead of a name.
pub(super) fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Resolves names for a tool's client, to allowed addresses only. The connection uses one of those, so a change of the
/// name's records has no effect. The client resolves names only: an address in a URL must be
/// [checked](NetworkRules::check) before.
#[derive(Clone, Debug)]
pub(super) struct CheckedResolver {
    pub rules: Arc<NetworkRules>,
    /// The port of every request of the client. The resolver is called without a port.
    pub port: u16,
}

/// Error of a name without an allowed address, as the tool's user sees it.
#[derive(Debug, thiserror::Error)]
#[error("its host has no address that may be reached")]
pub(super) struct NoAddress;

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { rules, port } = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed = rules.allowed(HostAndPort { name: Some(name.as_str()), port }, found);
            match allowed.unwrap_or_default() {
                allowed if allowed.is_empty() => Err(NoAddress.into()),
                allowed => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests;
