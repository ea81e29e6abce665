//! The guard against requests into inner networks: which addresses may be dialled, and which URLs an endpoint may have.
//!
//! Every address is judged in its canonical form, so that no notation gets around it. It judges; resolving names and
//! dialling exactly what was judged is the sender's part.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use onceward_core::webhooks::bounds::URL_BYTES_MAX;
use url::{Host, ParseError, Url};

/// A range of addresses in CIDR notation.
pub use ipnet::IpNet as Cidr;

/// Ranges that no public receiver has, after the special-purpose registries of
/// [IANA](https://www.iana.org/assignments/iana-ipv4-special-registry); the first that contains an address names it.
const SPECIAL_V4: [(Ipv4Addr, u8, &str); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an address of \"this network\""),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private address"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "an address behind a carrier's NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback address"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local address"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private address"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "an address for protocol assignments"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "an address of 6to4 relays"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private address"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "an address for benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast address"),
    (Ipv4Addr::BROADCAST, 32, "the broadcast address"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved address"),
];

/// The same of IPv6. Forms that carry an IPv4 address are refused whole; only mapped addresses are judged by what they
/// carry, since they alone are dialled as such.
const SPECIAL_V6: [(Ipv6Addr, u8, &str); 17] = [
    (Ipv6Addr::UNSPECIFIED, 128, "the unspecified address"),
    (Ipv6Addr::LOCALHOST, 128, "a loopback address"),
    (Ipv6Addr::UNSPECIFIED, 96, "an IPv4-compatible address"),
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, "an IPv4-translated address"),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, "an address of NAT64"),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "an address of NAT64"),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, "a discarded address"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, "a Teredo address"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "an address for protocol assignments"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "an address for documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "a 6to4 address"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "an address for documentation"),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "an address of segment routing"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "a private address"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "a link-local address"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "a site-local address"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "a multicast address"),
];

/// All of IPv6 that is given out to the public.
const GLOBAL_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// An address that may not be dialled, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub address: IpAddr,
    pub is: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: not allowed", self.address, self.is)
    }
}

/// Why an endpoint can't have a URL. Completes "the url …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("has {0} bytes; {URL_BYTES_MAX} are the most")]
    TooLong(usize),
    #[error("must not contain spaces or control characters")]
    Characters,
    #[error("is not a URL: {0}")]
    Malformed(ParseError),
    #[error("must begin with https:// or http://")]
    Scheme,
    #[error("must begin with https://")]
    HttpsOnly,
    #[error("must not contain a user name or a password")]
    UserInfo,
    #[error("must not have port 0")]
    Port,
    #[error("points to an address that webhooks may not reach: {0}")]
    Address(Refused),
    #[error("points to {host}, whose address webhooks may not reach: {refused}")]
    Name { host: String, refused: Refused },
}

/// What an operator allows.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Ranges that may be reached although they aren't public.
    pub allow: Vec<Cidr>,
    pub https_only: bool,
}

impl Guard {
    /// The address to dial: in canonical form, so that the mapped form of an address is that address.
    pub fn vet(&self, address: IpAddr) -> Result<IpAddr, Refused> {
        let address = address.to_canonical();
        match special(address) {
            Some(is) if !self.allow.iter().any(|range| range.contains(&address)) => Err(Refused { address, is }),
            _ => Ok(address),
        }
    }

    /// Those addresses of a name that may be dialled, in their order; when there are none, why the first may not.
    pub(crate) fn vet_all(&self, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, Option<Refused>> {
        let mut refused = None;
        let vetted = addresses.iter().filter_map(|&address| match self.vet(address) {
            Ok(address) => Some(address),
            Err(why) => {
                refused.get_or_insert(why);
                None
            }
        });
        let vetted: Vec<IpAddr> = vetted.collect();
        if vetted.is_empty() { Err(refused) } else { Ok(vetted) }
    }

    /// The URL of an endpoint, as far as it can be judged without resolving a name.
    pub fn check_url(&self, text: &str) -> Result<Url, UrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong(text.len()));
        }
        // The parser would drop them without a word, and the endpoint would be at another URL than the one shown.
        if text.chars().any(|char| char.is_control() || char.is_whitespace()) {
            return Err(UrlError::Characters);
        }
        let url = Url::parse(text).map_err(|error| match error {
            ParseError::RelativeUrlWithoutBase => UrlError::Scheme,
            other => UrlError::Malformed(other),
        })?;
        match url.scheme() {
            "https" => {}
            "http" if self.https_only => return Err(UrlError::HttpsOnly),
            "http" => {}
            _ => return Err(UrlError::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::UserInfo);
        }
        if url.port() == Some(0) {
            return Err(UrlError::Port);
        }
        self.check_host(&url)?;
        Ok(url)
    }

    fn check_host(&self, url: &Url) -> Result<(), UrlError> {
        let address = match url.host() {
            None => return Err(UrlError::Malformed(ParseError::EmptyHost)),
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(name)) if is_local_name(name) => {
                let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
                return self.check_name(name, &local);
            }
            Some(Host::Domain(_)) => return Ok(()),
        };
        self.vet(address).map(drop).map_err(UrlError::Address)
    }

    /// A name is refused when it has addresses, and none of them may be reached.
    pub(crate) fn check_name(&self, name: &str, addresses: &[IpAddr]) -> Result<(), UrlError> {
        match self.vet_all(addresses) {
            Err(Some(refused)) => Err(UrlError::Name { host: name.to_owned(), refused }),
            Err(None) | Ok(_) => Ok(()),
        }
    }
}

/// Names that mean this host, whatever a resolver says ([RFC 6761](https://www.rfc-editor.org/rfc/rfc6761#section-6.3)).
/// The parser has made them lower-case.
fn is_local_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

/// What an address is, if it isn't a public one.
fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => {
            let has = |net: Ipv4Addr, len: u8| (address.to_bits() ^ net.to_bits()).leading_zeros() >= u32::from(len);
            SPECIAL_V4.iter().find(|(net, len, _)| has(*net, *len)).map(|(_, _, is)| *is)
        }
        IpAddr::V6(address) => {
            let has = |net: Ipv6Addr, len: u8| (address.to_bits() ^ net.to_bits()).leading_zeros() >= u32::from(len);
            let named = SPECIAL_V6.iter().find(|(net, len, _)| has(*net, *len)).map(|(_, _, is)| *is);
            named.or_else(|| (!has(GLOBAL_V6.0, GLOBAL_V6.1)).then_some("not a public address"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allow: &[&str]) -> Guard {
        Guard { allow: allow.iter().map(|range| range.parse().unwrap()).collect(), https_only: false }
    }

    fn refusal(text: &str) -> Option<&'static str> {
        guard(&[]).vet(text.parse().unwrap()).err().map(|refused| refused.is)
    }

    #[test]
    fn every_special_range_is_refused_from_its_first_to_its_last_address() {
        for (net, len, is) in SPECIAL_V4 {
            let last = Ipv4Addr::from_bits(net.to_bits() | u32::MAX.checked_shr(u32::from(len)).unwrap_or(0));
            for address in [net, last] {
                assert!(refusal(&address.to_string()).is_some(), "{address} of {net}/{len}");
                assert_eq!(refusal(&format!("::ffff:{address}")), refusal(&address.to_string()), "mapped {address}");
            }
            assert_eq!(refusal(&net.to_string()), Some(is));
        }
        for (net, len, is) in SPECIAL_V6 {
            let last = Ipv6Addr::from_bits(net.to_bits() | u128::MAX.checked_shr(u32::from(len)).unwrap_or(0));
            if is != "an IPv4-compatible address" {
                assert!(refusal(&net.to_string()).is_some(), "{net}/{len}");
            }
            assert!(refusal(&last.to_string()).is_some(), "{last} of {net}/{len}");
        }
    }

    #[test]
    fn addresses_are_named_for_what_they_are() {
        for (address, is) in [
            ("127.0.0.1", "a loopback address"),
            ("::1", "a loopback address"),
            ("::ffff:127.0.0.1", "a loopback address"),
            ("::ffff:10.1.2.3", "a private address"),
            ("0.0.0.0", "an address of \"this network\""),
            ("169.254.169.254", "a link-local address"),
            ("172.31.255.255", "a private address"),
            ("100.127.255.255", "an address behind a carrier's NAT"),
            ("255.255.255.255", "the broadcast address"),
            ("::7f00:1", "an IPv4-compatible address"),
            ("64:ff9b::7f00:1", "an address of NAT64"),
            ("64:ff9b:1::a00:1", "an address of NAT64"),
            ("2002:7f00:1::", "a 6to4 address"),
            ("2001:0:5ef5:79fd::1", "a Teredo address"),
            ("fd00::1", "a private address"),
            ("fe80::1", "a link-local address"),
            ("4000::1", "not a public address"),
            ("1::1", "not a public address"),
        ] {
            assert_eq!(refusal(address), Some(is), "{address}");
        }
    }

    #[test]
    fn public_addresses_right_beside_the_special_ranges_pass() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.88.98.255",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "2606:4700::1111",
            "2001:200::1",
            "2003::1",
            "2a00::1",
        ] {
            assert_eq!(refusal(address), None, "{address}");
        }
    }

    #[test]
    fn what_is_allowed_is_allowed_in_its_mapped_form_too_and_nothing_beside_it() {
        let guard = guard(&["127.0.0.0/8", "fd00:1::/32"]);
        let vet = |text: &str| guard.vet(text.parse().unwrap());
        assert_eq!(vet("::ffff:127.0.0.1"), Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(vet("127.9.9.9").is_ok() && vet("fd00:1::5").is_ok());
        for other in ["::1", "fd00:2::5", "10.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1"] {
            assert!(vet(other).is_err(), "{other}");
        }
        let said = vet("10.0.0.1").unwrap_err().to_string();
        assert_eq!(said, "10.0.0.1 is a private address: not allowed");
    }

    /// Private address reached by another notation: literals and mapped forms too.
    #[test]
    fn a_url_to_an_inner_address_is_refused_in_every_notation() {
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "017700000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "%31%32%37.0.0.1",
            "１２７.0.0.1",
            "127。0。0。1",
            "0",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:ffff:10.0.0.1]",
            "[::127.0.0.1]",
            "[64:ff9b::127.0.0.1]",
            "[fe80::1]",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.b.localhost",
            "10.0.0.1:80",
            "169.254.169.254",
            "0xa9fea9fe",
        ] {
            for scheme in ["http", "https"] {
                let error = guard(&[]).check_url(&format!("{scheme}://{host}/hook")).unwrap_err();
                assert!(matches!(error, UrlError::Address(_) | UrlError::Name { .. }), "{host}: {error}");
            }
        }
        let said = guard(&[]).check_url("http://2130706433/").unwrap_err().to_string();
        assert_eq!(
            said,
            "points to an address that webhooks may not reach: 127.0.0.1 is a loopback address: not allowed"
        );
    }

    #[test]
    fn urls_that_are_none_or_none_of_ours_are_refused_with_the_reason() {
        let long = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX));
        for (text, error) in [
            ("", UrlError::Scheme),
            ("example.com/hook", UrlError::Scheme),
            ("/hook", UrlError::Scheme),
            ("ftp://example.com/", UrlError::Scheme),
            ("file:///etc/passwd", UrlError::Scheme),
            ("unix:/tmp/socket", UrlError::Scheme),
            ("https://user@example.com/", UrlError::UserInfo),
            ("https://user:word@example.com/", UrlError::UserInfo),
            ("https://:word@example.com/", UrlError::UserInfo),
            ("https://example.com:0/", UrlError::Port),
            (" https://example.com/", UrlError::Characters),
            ("https://example.com/a\r\nx: y", UrlError::Characters),
            ("https://exa\tmple.com/", UrlError::Characters),
            ("https://", UrlError::Malformed(ParseError::EmptyHost)),
            ("https://[fe80::1%25eth0]/", UrlError::Malformed(ParseError::InvalidIpv6Address)),
            ("https://[::1/", UrlError::Malformed(ParseError::InvalidIpv6Address)),
            ("https://1.2.3.4.5/", UrlError::Malformed(ParseError::InvalidIpv4Address)),
            ("https://256.0.0.1/", UrlError::Malformed(ParseError::InvalidIpv4Address)),
            ("https://example.com:99999/", UrlError::Malformed(ParseError::InvalidPort)),
            (&long, UrlError::TooLong(long.len())),
        ] {
            assert_eq!(guard(&[]).check_url(text), Err(error), "{text}");
        }
    }

    #[test]
    fn urls_of_receivers_pass() {
        let guard = guard(&["127.0.0.0/8"]);
        for text in [
            "https://example.com/webhooks?a=b&c=%20#top",
            "http://example.com",
            "https://example.com:8443/x",
            "https://8.8.8.8/",
            "https://[2606:4700::1111]:8080/",
            "http://127.0.0.1:9000/hook",
            "http://localhost:9000/",
            "https://bücher.example/",
        ] {
            assert!(guard.check_url(text).is_ok(), "{text}");
        }
        let https_only = Guard { https_only: true, ..guard };
        assert_eq!(https_only.check_url("http://example.com/"), Err(UrlError::HttpsOnly));
        assert!(https_only.check_url("https://example.com/").is_ok());
    }
}
