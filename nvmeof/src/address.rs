//! Addresses as they are written, and what they resolve to.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::{Error, Result};

/// Splits `host`, `host:port`, `[address]:port` or a bare IPv6 address into host and port.
pub(crate) fn split(text: &str) -> Result<(&str, Option<u16>)> {
    let wrong = || Error::InvalidArgument {
        what: "address",
        given: text.chars().take(256).collect(),
        rule: "is a name or an address, with :port after it if another than the default is meant \
               ([address]:port for IPv6)",
    };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(wrong()),
        }
    } else if text.parse::<IpAddr>().is_ok() {
        (text, None)
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let is_host = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_' | ':' | '%')
    };
    if host.is_empty() || host.len() > 255 || !host.chars().all(is_host) {
        return Err(wrong());
    }
    let port = port.map(|port| port.parse().map_err(|_| wrong())).transpose()?;
    Ok((host, port))
}

/// Resolves a name or address to all the places where it may be, in the resolver's order.
pub(crate) fn resolve(text: &str, default_port: u16) -> Result<Vec<SocketAddr>> {
    let (host, port) = split(text)?;
    let unresolved = |source| Error::Resolve { host: host.to_owned(), source };
    let found: Vec<SocketAddr> =
        (host, port.unwrap_or(default_port)).to_socket_addrs().map_err(unresolved)?.collect();
    if found.is_empty() {
        return Err(unresolved(std::io::ErrorKind::NotFound.into()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, expected) in [
            ("10.99.0.1", ("10.99.0.1", None)),
            ("10.99.0.1:8009", ("10.99.0.1", Some(8009))),
            ("fe80::1", ("fe80::1", None)),
            ("[fe80::1]", ("fe80::1", None)),
            ("[fe80::1]:4421", ("fe80::1", Some(4421))),
            ("storage-1.example.org", ("storage-1.example.org", None)),
            ("storage:4420", ("storage", Some(4420))),
        ] {
            assert_eq!(split(text).unwrap(), expected);
        }
        for wrong in ["", ":4420", "a:b", "a:70000", "[::1", "[::1]x", "a b", "a/b", "a:1:2"] {
            split(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn addresses_resolve_to_themselves() {
        assert_eq!(resolve("10.99.0.1", 4420).unwrap(), ["10.99.0.1:4420".parse().unwrap()]);
        assert_eq!(resolve("[::1]:8009", 4420).unwrap(), ["[::1]:8009".parse().unwrap()]);
    }
}
