//! Entries of the list of allowed addresses, as an operator writes them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use reqwest::Url;

use super::super::address::closed_whole;
use super::HostAndPort;

/// Allowed destinations: a name, all names below one, an address, or a range of addresses, each at any port or at one
/// port. A listed name may resolve to any address that is not always forbidden.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkEntry {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    /// All names below this one, without the name itself.
    Below(String),
    Addresses(IpNet),
}

/// Error of an invalid entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEntry {
    /// The entry is neither a host nor a range.
    #[error(
        "'{0}' is not a host or a range of addresses, such as model.example, *.svc.example, 10.0.0.7, 10.1.0.0/16, [::1] or 10.0.0.7:8000"
    )]
    NoHost(String),
    /// The entry is a URL, which is more than a host.
    #[error("'{0}' is a URL; an entry consists of a host and optionally a port")]
    Url(String),
    /// The port is invalid.
    #[error("'{entry}': '{port}' is not a port")]
    Port {
        /// The whole text.
        entry: String,
        /// The invalid port.
        port: String,
    },
    /// The address has bits set beyond the prefix.
    #[error("'{entry}' has bits set beyond its prefix; the range is {meant}")]
    Prefix {
        /// The whole text.
        entry: String,
        /// The range that contains the address.
        meant: String,
    },
    /// All addresses of the entry are always forbidden.
    #[error("'{entry}' is {closed}; no request of this host goes there, listed or not")]
    Closed {
        /// The whole text.
        entry: String,
        /// The kind of the addresses.
        closed: String,
    },
}

impl NetworkEntry {
    /// Returns whether the entry allows an address for a request with this host and port.
    pub(super) fn is_of(&self, target: HostAndPort<'_>, address: IpAddr) -> bool {
        if self.port.is_some_and(|port| port != target.port) {
            return false;
        }
        let name = || target.name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        match &self.host {
            Host::Name(listed) => name().is_some_and(|name| name == *listed),
            Host::Below(listed) => name().is_some_and(|name| {
                name.strip_suffix(listed)
                    .and_then(|rest| rest.strip_suffix('.'))
                    .is_some_and(|rest| !rest.is_empty())
            }),
            Host::Addresses(net) => net.contains(&address.to_canonical()),
        }
    }
}

impl FromStr for NetworkEntry {
    type Err = InvalidEntry;

    fn from_str(text: &str) -> Result<Self, InvalidEntry> {
        if text.contains("://") {
            return Err(InvalidEntry::Url(text.to_owned()));
        }
        let (host, port) = split(text).ok_or_else(|| InvalidEntry::NoHost(text.to_owned()))?;
        let port = match port {
            None => None,
            Some(digits) => match digits.parse() {
                Ok(port @ 1..) => Some(port),
                _ => return Err(InvalidEntry::Port { entry: text.to_owned(), port: digits.to_owned() }),
            },
        };
        let host = match addresses(host, text)? {
            Some(net) => Host::Addresses(net),
            None => name(host).ok_or_else(|| InvalidEntry::NoHost(text.to_owned()))?,
        };
        Ok(Self { host, port })
    }
}

impl TryFrom<String> for NetworkEntry {
    type Error = InvalidEntry;

    fn try_from(text: String) -> Result<Self, InvalidEntry> {
        text.parse()
    }
}

impl From<NetworkEntry> for String {
    fn from(entry: NetworkEntry) -> Self {
        entry.to_string()
    }
}

impl fmt::Display for NetworkEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.host {
            Host::Name(name) => name.clone(),
            Host::Below(name) => format!("*.{name}"),
            Host::Addresses(net) => {
                let is_one = net.prefix_len() == net.max_prefix_len();
                let text = if is_one { net.addr().to_string() } else { net.to_string() };
                if net.addr().is_ipv6() && self.port.is_some() { format!("[{text}]") } else { text }
            }
        };
        match self.port {
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(&host),
        }
    }
}

/// Splits a text into host, without brackets, and port.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
        return host.contains(':').then_some((host, port));
    }
    match text.split_once(':') {
        // Several colons belong to an IPv6 address.
        Some((_, rest)) if rest.contains(':') => Some((text, None)),
        Some((host, port)) => Some((host, Some(port))),
        None => Some((text, None)),
    }
}

/// Parses addresses. Returns `None` for a name.
fn addresses(host: &str, entry: &str) -> Result<Option<IpNet>, InvalidEntry> {
    let wrong = || InvalidEntry::NoHost(entry.to_owned());
    let net = match host.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) if host.contains('/') => host.parse::<IpNet>().map_err(|_| wrong())?,
        // An address in a form that parsers interpret differently.
        Err(_) if host.contains(':') => return Err(wrong()),
        Err(_) => return Ok(None),
    };
    if net.trunc() != net {
        return Err(InvalidEntry::Prefix { entry: entry.to_owned(), meant: net.trunc().to_string() });
    }
    // IPv4-mapped addresses are compared in their IPv4 form.
    if matches!(net.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return Err(wrong());
    }
    match closed_whole(net) {
        Some(closed) => Err(InvalidEntry::Closed { entry: entry.to_owned(), closed: closed.to_string() }),
        None => Ok(Some(net)),
    }
}

/// Parses a name in the form that it has in a parsed URL.
fn name(text: &str) -> Option<Host> {
    let (is_below, bare) = match text.strip_prefix("*.") {
        Some(bare) => (true, bare),
        None => (false, text),
    };
    if bare.contains(['/', '?', '#', '@', '\\', '*', '%']) || bare.trim() != bare {
        return None;
    }
    let url = Url::parse(&format!("http://{bare}/")).ok()?;
    let name = url.domain()?;
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_name = !name.is_empty() && name.split('.').all(|label| !label.is_empty());
    is_name.then(|| if is_below { Host::Below(name.to_owned()) } else { Host::Name(name.to_owned()) })
}
