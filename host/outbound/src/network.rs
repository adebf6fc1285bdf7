//! Where requests of this host may go. What answers there decides nothing: the very address that is
//! connected to is checked, each time a connection is opened, however it was found out.

mod entry;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Class, Closed, Private, class};
pub use entry::{InvalidEntry, NetworkEntry};

/// How far a part of the network is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// All of it.
    #[default]
    Open,
    /// What is on the list.
    Listed,
}

/// Where requests may go: how far the public network and private ones are reached, and a list for
/// what is not open. What is [closed](Forbidden) to everybody is so under any rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct NetworkRules {
    /// The public network.
    pub public: Reach,
    /// Private networks, this machine among them.
    pub private: Reach,
    /// What may be reached where not all may.
    pub allow: Vec<NetworkEntry>,
}

/// A place that is asked for: a host as an address has it, and a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The host's name; none where it is an address.
    pub name: Option<&'a str>,
    /// The port.
    pub port: u16,
}

/// Why a request may not go where it was to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// The address, where it was asked for by itself. What a name leads to is told to nobody: whoever may
    /// ask for names could find out what is in a network.
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
    /// The same for those who are told no addresses.
    pub(super) fn without_address(&self) -> String {
        match self.literal {
            Some(_) => format!("its address is {}", self.rule),
            None => self.to_string(),
        }
    }
}

impl NetworkRules {
    /// Everything may be reached but for what never is.
    pub fn open() -> Self {
        Self::default()
    }

    /// The public network may be reached, and of private ones what is on the list.
    pub fn allow_list(allow: Vec<NetworkEntry>) -> Self {
        Self { public: Reach::Open, private: Reach::Listed, allow }
    }

    /// Whether a request may be made to this URL, as far as that can be told before its name is
    /// resolved. To be asked where somebody gives a URL, so that they hear of it at once.
    pub fn check(&self, url: &Url) -> Result<(), Forbidden> {
        let Some(address) = literal(url) else { return Ok(()) };
        self.check_address(
            Place { name: None, port: url.port_or_known_default().unwrap_or_default() },
            address,
        )
    }

    /// Whether a connection may be opened to this address, which is asked for by this host and port.
    pub(super) fn check_address(&self, place: Place<'_>, address: IpAddr) -> Result<(), Forbidden> {
        let listed = || self.allow.iter().any(|entry| entry.is_of(place, address));
        let rule = match class(address) {
            Class::Closed(closed) => Rule::Always(closed),
            Class::Public if self.public == Reach::Open || listed() => return Ok(()),
            Class::Private(_) if self.private == Reach::Open || listed() => return Ok(()),
            Class::Public => Rule::PublicNotListed,
            Class::Private(private) => Rule::PrivateNotListed(private),
        };
        Err(Forbidden { literal: place.name.is_none().then_some(address), rule })
    }

    /// Those of a host's addresses that may be connected to; an error where it has some, and none
    /// of them may.
    pub(super) fn allowed(
        &self,
        place: Place<'_>,
        found: impl Iterator<Item = SocketAddr>,
    ) -> Result<Vec<SocketAddr>, Forbidden> {
        let (mut allowed, mut forbidden) = (Vec::new(), None);
        for address in found {
            match self.check_address(place, address.ip()) {
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

/// The host of a URL where it is an address and no name.
pub(super) fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Resolves names for a client of a tool to the addresses that may be reached, and to no other. The
/// connection goes to one of those, so a name that changes its mind changes nothing. A client asks
/// it for names alone: an address in a URL is to be [checked](NetworkRules::check) before.
#[derive(Clone, Debug)]
pub(super) struct CheckedResolver {
    pub rules: Arc<NetworkRules>,
    /// The port of every request of the client. It is told names, but no ports.
    pub port: u16,
}

/// Why a name leads nowhere, for a tool's user.
#[derive(Debug, thiserror::Error)]
#[error("its host has no address that may be reached")]
pub(super) struct NoAddress;

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { rules, port } = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed = rules.allowed(Place { name: Some(name.as_str()), port }, found);
            match allowed.unwrap_or_default() {
                allowed if allowed.is_empty() => Err(NoAddress.into()),
                allowed => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests;
