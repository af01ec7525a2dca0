//! A target as it is named in a URI or a configuration: where, what, and how to connect.

use crate::{Controller, Error, Nqn, Options, Result, address};

/// Where a subsystem is, which one, and how to connect to it.
///
/// Made by [`Target::new`], from a URI by [`Target::from_uri`], or from nvme-cli's configuration
/// by [`Configuration`](crate::Configuration).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Target {
    /// A name or an address, with the port after it if it is not that of the options.
    pub address: String,
    /// The subsystem; the discovery service if none was named.
    pub subsystem: Nqn,
    /// How to connect.
    pub options: Options,
}

impl Target {
    /// A subsystem at an address.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the address is none; nothing is resolved yet.
    pub fn new(address: &str, subsystem: Nqn, options: Options) -> Result<Self> {
        address::split(address)?;
        Ok(Self { address: address.to_owned(), subsystem, options })
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// As [`Controller::connect_with`].
    pub fn connect(&self) -> Result<Controller> {
        let options = self.options.clone();
        Controller::connect_with(&self.address, self.subsystem.clone(), options)
    }

    /// Reads a URI such as `nvme+rdma://10.99.0.1:4420/nqn.2024-01.org.example:disk`.
    ///
    /// The path names the subsystem, the discovery service if it is empty; what follows a second
    /// slash, such as a namespace, is an error. Characters may be percent-encoded. Settings follow
    /// a question mark, by the names that nvme-cli's configuration has for them:
    /// `?nr_io_queues=4&queue_size=64`. Secrets do not belong into a URI and are refused there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] or [`Error::InvalidName`], saying which part is wrong.
    pub fn from_uri(uri: &str) -> Result<Self> {
        let wrong = |what, given: &str, rule| Error::InvalidArgument {
            what,
            given: given.chars().take(256).collect(),
            rule,
        };
        let rest = uri
            .strip_prefix("nvme+rdma://")
            .ok_or_else(|| wrong("URI", uri, "begins with nvme+rdma://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('/') || uri.contains('#') {
            return Err(wrong("URI", uri, "ends after the name of the subsystem"));
        }
        let subsystem = match path {
            "" => Nqn::discovery(),
            name => Nqn::new(decode(name).ok_or_else(|| {
                wrong("name in a URI", name, "is UTF-8, percent-encoded where it is not plain")
            })?)?,
        };
        let mut options = Options::new();
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let value = decode(value)
                .ok_or_else(|| wrong("setting in a URI", setting, "is UTF-8 and decodes"))?;
            options = options.set(name, &value)?;
        }
        Self::new(authority, subsystem, options)
    }
}

/// Takes percent-encoding away.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let (high, low) = (digit(*after.first()?)?, digit(*after.get(1)?)?);
            bytes.push(u8::try_from(high << 4 | low).ok()?);
            rest = after.get(2..)?;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn a_uri_names_address_subsystem_and_settings() {
        let target = Target::from_uri(
            "nvme+rdma://[fe80::1]:4421/nqn.2024-01.org.example%3Adisk?nr_io_queues=4&queue_size=64",
        )
        .unwrap();
        assert_eq!(target.address, "[fe80::1]:4421");
        assert_eq!(target.subsystem.as_str(), "nqn.2024-01.org.example:disk");
        assert_eq!((target.options.io_queues, target.options.queue_entries), (4, 64));
    }

    #[test]
    fn a_uri_without_a_subsystem_means_discovery() {
        for uri in ["nvme+rdma://storage", "nvme+rdma://storage/"] {
            assert!(Target::from_uri(uri).unwrap().subsystem.is_discovery());
        }
    }

    #[test]
    fn wrong_uris_are_refused() {
        for wrong in [
            "",
            "nvme+tcp://a/b",
            "nvme+rdma://",
            "nvme+rdma:///b",
            "nvme+rdma://a/b/1",
            "nvme+rdma://a/b#c",
            "nvme+rdma://a/%zz",
            "nvme+rdma://a/%f",
            "nvme+rdma://a/%ff",
            "nvme+rdma://a/b?nr_io_queues=x",
            "nvme+rdma://a/b?unheard_of=1",
            "nvme+rdma://a/b?dhchap_secret=DHHC-1:00:AAAA:",
        ] {
            Target::from_uri(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn text_from_anywhere_is_read_or_refused() {
        let mut random = Random::new(13);
        for _ in 0..20_000 {
            let mut uri = b"nvme+rdma://[::1]:4420/nqn%3A?nr_io_queues=4".to_vec();
            let at = random.below(uri.len());
            uri[at] = 0x20 + u8::try_from(random.below(0x5f)).unwrap();
            let _read_or_refused = Target::from_uri(std::str::from_utf8(&uri).unwrap());
        }
    }
}
