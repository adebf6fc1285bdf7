//! Which addresses a tool may reach: by default those of the public network, because a
//! name that a model writes or a server answers with may lead anywhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Resolves names to the addresses that may be reached, and to no other. The connection
/// goes to one of those, so a name that changes its mind changes nothing.
#[derive(Clone, Debug)]
pub(super) struct CheckedResolver {
    /// Whether addresses that are not public may be reached, too.
    pub private_allowed: bool,
}

/// Why a name leads nowhere.
#[derive(Debug, thiserror::Error)]
#[error("its host has no address that may be reached")]
pub(super) struct NoAddress;

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let private_allowed = self.private_allowed;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| private_allowed || is_public(address.ip())).collect();
            if allowed.is_empty() {
                return Err(NoAddress.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is one of the public network, and so nobody's own machine or
/// neighbourhood. Addresses that carry another one are judged by that.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(a == 0
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && b & 0xfe == 18)
        || a >= 224)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // ::ffff:a.b.c.d, the other way to write a.b.c.d.
        [0, 0, 0, 0, 0, 0xffff, high, low] => embedded(high, low),
        // Translated and tunnelled addresses reach the one inside.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Protocol assignments, tunnels among them, and documentation.
        [0x2001, second, ..] if second < 0x200 => false,
        [0x2001, 0xdb8, ..] => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        // What is handed out to the public network.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_network_are_public() {
        fn check(address: &str, public: bool) {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
        for public in ["1.1.1.1", "93.184.215.14", "172.32.0.1", "100.128.0.1", "198.20.0.1", "223.1.1.1"] {
            check(public, true);
        }
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            check(private, false);
            check(&format!("::ffff:{private}"), false);
            check(&format!("64:ff9b::{private}"), false);
        }
        for public in
            ["2606:4700::1111", "2a00:1450::1", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"]
        {
            check(public, true);
        }
        for private in [
            "::",
            "::1",
            "::127.0.0.1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a00:1::",
            "64:ff9b:1::1",
            "3fff::1",
        ] {
            check(private, false);
        }
    }
}
