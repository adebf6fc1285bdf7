//! Classification of addresses: public, private, or never allowed, because they belong to services of the machine
//! itself, such as a cloud's metadata service.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

/// Class of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The public network.
    Public,
    /// Any other address at which a server may listen.
    Private(Private),
    /// An address that requests may never go to, even if the operator lists it.
    Closed(Closed),
}

/// Kind of a private address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Private {
    Loopback,
    Network,
    /// A reserved, translated or tunnelled address, or one for documentation.
    Special,
}

/// Kind of an address that requests may never go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// The machine's own link, which includes the metadata services of most clouds.
    LinkLocal,
    /// A metadata service at another address. Its responses contain the machine's credentials.
    Metadata,
    /// `0.0.0.0` and `::`, which reach any listener on this machine.
    Unspecified,
    /// A multicast or broadcast address.
    Multicast,
}

impl fmt::Display for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::Network => "a private address",
            Self::Special => "an address outside of the public network",
        })
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "the address of a cloud's metadata service",
            Self::Unspecified => "the unspecified address, which belongs to no server",
            Self::Multicast => "a multicast or broadcast address",
        })
    }
}

/// Addresses, other than link-local ones, of clouds' metadata services and similar services for their machines: those
/// of Alibaba, of Azure (its wire server), and of Oracle's first cloud.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// Metadata services of AWS (all services for its machines), Google, Oracle, Linode and Scaleway. Each is in a private
/// range that other networks are unlikely to use.
const METADATA_V6: [Ipv6Net; 5] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0), 48),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128),
];

/// Classifies an address. One that embeds a closed address is closed.
pub(super) fn class(address: IpAddr) -> Class {
    if let Some(closed) = closed(address) {
        return Class::Closed(closed);
    }
    match address.to_canonical() {
        address if is_public(address) => Class::Public,
        address if address.is_loopback() => Class::Private(Private::Loopback),
        IpAddr::V4(address) if address.is_private() => Class::Private(Private::Network),
        IpAddr::V6(address) if address.is_unique_local() => Class::Private(Private::Network),
        _ => Class::Private(Private::Special),
    }
}

/// Returns the kind of a network's addresses if all of them are closed.
pub(super) fn closed_whole(net: IpNet) -> Option<Closed> {
    let (first, last) = (closed(net.network())?, closed(net.broadcast())?);
    (first == last).then_some(first)
}

fn closed(address: IpAddr) -> Option<Closed> {
    match address {
        IpAddr::V4(address) => closed_v4(address),
        IpAddr::V6(address) => closed_v6(address),
    }
}

fn closed_v4(address: Ipv4Addr) -> Option<Closed> {
    if address.is_link_local() {
        Some(Closed::LinkLocal)
    } else if METADATA_V4.contains(&address) {
        Some(Closed::Metadata)
    } else if address.octets()[0] == 0 {
        Some(Closed::Unspecified)
    } else if address.is_multicast() || address.is_broadcast() {
        Some(Closed::Multicast)
    } else {
        None
    }
}

fn closed_v6(address: Ipv6Addr) -> Option<Closed> {
    if address.is_loopback() {
        None
    } else if address.is_unicast_link_local() {
        Some(Closed::LinkLocal)
    } else if METADATA_V6.iter().any(|net| net.contains(&address)) {
        Some(Closed::Metadata)
    } else if address.is_unspecified() {
        Some(Closed::Unspecified)
    } else if address.is_multicast() {
        Some(Closed::Multicast)
    } else {
        embedded(address).into_iter().flatten().find_map(closed_v4)
    }
}

/// Returns the IPv4 addresses embedded in an IPv6 address, for each way to embed one.
fn embedded(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        // IPv4-mapped, stateless translation (SIIT), and the deprecated IPv4-compatible form.
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] => [v4(high, low), None],
        [0, 0, 0, 0, 0xffff, 0, high, low] => [v4(high, low), None],
        // NAT64 with the well-known prefix.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => [v4(high, low), None],
        // NAT64 with a local prefix of 48 or 96 bits. The part that one form does not use is zero.
        [0x64, 0xff9b, 1, first, second, third, high, low] => {
            let ([_, second], [third, _]) = (second.to_be_bytes(), third.to_be_bytes());
            let is_some = |address: &Ipv4Addr| !address.is_unspecified();
            let short = v4(first, u16::from_be_bytes([second, third])).filter(is_some);
            [short, v4(high, low).filter(|address| short.is_none() || is_some(address))]
        }
        // 6to4, and Teredo with its server and, inverted, its client.
        [0x2002, high, low, ..] => [v4(high, low), None],
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            [v4(server_high, server_low), v4(!high, !low)]
        }
        // ISATAP, in any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => [v4(high, low), None],
        _ => [None, None],
    }
}

/// Returns whether an address belongs to the public network. An address that embeds another is classified by the
/// embedded one.
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
        // ::ffff:a.b.c.d is another form of a.b.c.d.
        [0, 0, 0, 0, 0, 0xffff, high, low] => embedded(high, low),
        // Translated and tunnelled addresses reach the embedded one.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Protocol assignments, including tunnels, and documentation.
        [0x2001, second, ..] if second < 0x200 => false,
        [0x2001, 0xdb8, ..] => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        // The range assigned to the public network.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_address_is_closed_in_every_notation() {
        fn check(address: &str, expected: Option<Closed>) {
            let class = class(address.parse().unwrap());
            let seen = if let Class::Closed(closed) = class { Some(closed) } else { None };
            assert_eq!(seen, expected, "{address}");
        }
        let closed = [
            ("169.254.169.254", Closed::LinkLocal),
            ("169.254.0.23", Closed::LinkLocal),
            ("100.100.100.200", Closed::Metadata),
            ("168.63.129.16", Closed::Metadata),
            ("192.0.0.192", Closed::Metadata),
            ("0.0.0.0", Closed::Unspecified),
            ("0.1.2.3", Closed::Unspecified),
            ("224.0.0.1", Closed::Multicast),
            ("255.255.255.255", Closed::Multicast),
        ];
        for (address, why) in closed {
            check(address, Some(why));
            let plain: Ipv4Addr = address.parse().unwrap();
            let [a, b, c, d] = plain.octets();
            let inverted = Ipv4Addr::from_bits(!plain.to_bits());
            for carried in [
                format!("::ffff:{address}"),
                format!("::ffff:0:{address}"),
                format!("64:ff9b::{address}"),
                format!("64:ff9b:1::{address}"),
                format!("64:ff9b:1:{a:02x}{b:02x}:{c:02x}:{d:02x}00::"),
                format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1"),
                format!(
                    "2001:0:{address_in_hex}::",
                    address_in_hex = format_args!("{a:02x}{b:02x}:{c:02x}{d:02x}")
                ),
                format!("2001::{inverted}"),
                format!("2a00:1450::5efe:{address}"),
                format!("fd12::200:5efe:{address}"),
            ] {
                // A Teredo address without a server has 0.0.0.0 there.
                let why = if carried.starts_with("2001::") { Closed::Unspecified } else { why };
                check(&carried, Some(why));
            }
        }
        check("::169.254.169.254", Some(Closed::LinkLocal));
        check(&format!("2001:0:0101:0101::{}", Ipv4Addr::from_bits(!0xa9fe_a9fe)), Some(Closed::LinkLocal));
        check("::", Some(Closed::Unspecified));
        check("fe80::1", Some(Closed::LinkLocal));
        check("ff02::1", Some(Closed::Multicast));
        for metadata in ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42"]
        {
            check(metadata, Some(Closed::Metadata));
        }
        for open in
            ["127.0.0.1", "::1", "10.0.0.1", "1.1.1.1", "fd00::1", "::ffff:10.0.0.1", "2606:4700::1111"]
        {
            check(open, None);
        }
    }

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
