//! Which device, port and GID to use, said in the style of `NCCL_IB_HCA`.

use std::{env, fmt, str::FromStr};

use crate::{Error, PortNumber, Result};

/// A choice of devices: `mlx5_0`, `mlx5_0:1,mlx5_1`, `=mlx5_1`, `^mlx5_3`.
///
/// Names are prefixes, as in `NCCL_IB_HCA`: `mlx5` is every mlx5 device, and `mlx5_1` is `mlx5_10` too. After `=`
/// they must match whole, after `^` they are what is not wanted, and `^=` is both. A name may carry a
/// port. The default wants every device.
///
/// # Examples
///
/// ```
/// use ibverbs::{DeviceSelector, PortNumber};
///
/// let selector: DeviceSelector = "mlx5_0,mlx5_1:2".parse()?;
/// assert!(selector.wants("mlx5_0") && !selector.wants("mlx5_2"));
/// assert_eq!(selector.wanted_port("mlx5_1"), Some(PortNumber::new(2)?));
/// let all_but_one: DeviceSelector = "^=mlx5_3".parse()?;
/// assert!(all_but_one.wants("mlx5_30") && !all_but_one.wants("mlx5_3"));
/// # Ok::<(), ibverbs::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSelector {
    patterns: Vec<Pattern>,
    exclude: bool,
    exact: bool,
    port: Option<PortNumber>,
    gid_index: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    name: String,
    port: Option<PortNumber>,
}

impl DeviceSelector {
    /// Reads `RDMA_DEVICE` (see the type), `RDMA_PORT` and `RDMA_GID_INDEX`. What is not set is not restricted.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for a value that does not parse.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&'static str) -> Option<String>) -> Result<Self> {
        fn setting<T>(
            variable: &'static str,
            value: Option<String>,
            expected: &'static str,
            parse: impl FnOnce(&str) -> Option<T>,
        ) -> Result<Option<T>> {
            let Some(value) = value else { return Ok(None) };
            let parsed = parse(value.trim());
            parsed.map(Some).ok_or(Error::Setting { variable, value, expected })
        }
        let mut selector = get("RDMA_DEVICE").unwrap_or_default().parse::<Self>()?;
        selector.port =
            setting("RDMA_PORT", get("RDMA_PORT"), "a port number from 1 to 255", |text| {
                text.parse().ok().and_then(|number| PortNumber::new(number).ok())
            })?;
        let index = "the index of an entry of the port's GID table, from 0 to 255";
        selector.gid_index =
            setting("RDMA_GID_INDEX", get("RDMA_GID_INDEX"), index, |text| text.parse().ok())?;
        Ok(selector)
    }

    /// Wants just the device of this name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        let patterns = vec![Pattern { name: name.into(), port: None }];
        Self { patterns, exact: true, ..Self::default() }
    }

    /// Wants this port, whatever the device.
    #[must_use]
    pub fn port(self, port: PortNumber) -> Self {
        Self { port: Some(port), ..self }
    }

    /// Wants this entry of the port's GID table. The default is the one that other machines can most
    /// likely reach.
    #[must_use]
    pub fn gid_index(self, index: u8) -> Self {
        Self { gid_index: Some(index), ..self }
    }

    /// Whether a device of this name is wanted.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.patterns.is_empty() || self.find(name).is_some() != self.exclude
    }

    /// The port that was asked for, of the device of this name.
    #[must_use]
    pub fn wanted_port(&self, name: &str) -> Option<PortNumber> {
        let named = if self.exclude { None } else { self.find(name) };
        named.and_then(|pattern| pattern.port).or(self.port)
    }

    /// The GID index that was asked for.
    #[must_use]
    pub fn wanted_gid_index(&self) -> Option<u8> {
        self.gid_index
    }

    fn find(&self, name: &str) -> Option<&Pattern> {
        self.patterns.iter().find(|pattern| {
            if self.exact { name == pattern.name } else { name.starts_with(&pattern.name) }
        })
    }
}

impl FromStr for DeviceSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = || Error::Setting {
            variable: "RDMA_DEVICE",
            value: text.to_owned(),
            expected: "NAME[:PORT],… where ^ in front excludes and = in front asks for whole names",
        };
        let mut rest = text.trim();
        let mut selector = Self::default();
        if let Some(after) = rest.strip_prefix('^') {
            (selector.exclude, rest) = (true, after);
        }
        if let Some(after) = rest.strip_prefix('=') {
            (selector.exact, rest) = (true, after);
        }
        if rest.is_empty() {
            return if selector == Self::default() { Ok(selector) } else { Err(malformed()) };
        }
        for item in rest.split(',') {
            let (name, port) = match item.trim().split_once(':') {
                Some((name, port)) => {
                    let port = port.parse().ok().and_then(|port| PortNumber::new(port).ok());
                    (name, Some(port.ok_or_else(malformed)?))
                }
                None => (item.trim(), None),
            };
            if name.is_empty() {
                return Err(malformed());
            }
            selector.patterns.push(Pattern { name: name.to_owned(), port });
        }
        Ok(selector)
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.patterns.is_empty() {
            return f.write_str("of any name");
        }
        f.write_str(if self.exclude { "other than " } else { "named " })?;
        for (index, Pattern { name, port }) in self.patterns.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let star = if self.exact { "" } else { "*" };
            write!(f, "{separator}{name}{star}")?;
            if let Some(port) = port {
                write!(f, ":{port}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DeviceSelector {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_prefixes_unless_asked_to_match_whole() {
        assert!(parse("mlx5").wants("mlx5_7"));
        assert!(parse("mlx5_1").wants("mlx5_10"));
        assert!(!parse("=mlx5_1").wants("mlx5_10"));
        assert!(!parse("mlx5").wants("rxe0"));
    }

    #[test]
    fn exclusions_want_everything_else() {
        let selector = parse("^mlx5_3,rxe");
        assert!(selector.wants("mlx5_0"));
        assert!(!selector.wants("mlx5_3"));
        assert!(!selector.wants("rxe0"));
        assert!(parse("^=mlx5_1").wants("mlx5_10"));
    }

    #[test]
    fn a_port_belongs_to_its_name() {
        let selector = parse("mlx5_0:2, mlx5_1");
        assert_eq!(selector.wanted_port("mlx5_0"), Some(PortNumber::new(2).unwrap()));
        assert_eq!(selector.wanted_port("mlx5_1"), None);
        assert_eq!(selector.port(PortNumber::FIRST).wanted_port("mlx5_1"), Some(PortNumber::FIRST));
    }

    #[test]
    fn nothing_wants_everything() {
        assert!(parse("").wants("rxe0"));
        assert_eq!(parse(" "), DeviceSelector::default());
    }

    #[test]
    fn nonsense_is_refused_with_the_variable() {
        for text in ["mlx5_0:0", "mlx5_0:x", "mlx5_0:999", ",", "mlx5_0,,rxe0", "^", "=", ":1"] {
            let error = text.parse::<DeviceSelector>().unwrap_err();
            assert!(error.to_string().starts_with("RDMA_DEVICE="), "{text}: {error}");
        }
    }

    #[test]
    fn variables_are_read_together() {
        let read = |device, port, index| {
            DeviceSelector::from_variables(move |name| {
                let value = match name {
                    "RDMA_DEVICE" => device,
                    "RDMA_PORT" => port,
                    _ => index,
                };
                Some(String::from(value))
            })
        };
        let selector = read("rxe0", "1", "3").unwrap();
        assert_eq!(selector.wanted_gid_index(), Some(3));
        assert_eq!(selector.wanted_port("rxe0"), Some(PortNumber::FIRST));
        read("rxe0", "0", "3").unwrap_err();
        assert!(read("rxe0", "1", "-1").unwrap_err().to_string().contains("RDMA_GID_INDEX"));
    }
}
