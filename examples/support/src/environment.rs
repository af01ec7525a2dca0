//! Environment variables, read with errors that name them.

use std::{env, ffi::OsString, time::Duration};

use crate::{Error, Result};

type Lookup<'source> = dyn Fn(&str) -> Option<OsString> + 'source;

/// Where variables come from: the process, or a list in tests.
pub(crate) struct Environment<'source> {
    lookup: Box<Lookup<'source>>,
}

impl Environment<'static> {
    pub(crate) fn of_process() -> Self {
        Self { lookup: Box::new(|name| env::var_os(name)) }
    }
}

impl Environment<'_> {
    /// The value, `None` if the variable is not set or empty.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        match (self.lookup)(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) if text.trim().is_empty() => Ok(None),
            Some(Ok(text)) => Ok(Some(text.trim().to_owned())),
            Some(Err(raw)) => {
                Err(Error::variable(name, Some(&raw.to_string_lossy()), "not valid UTF-8"))
            }
        }
    }

    pub(crate) fn has(&self, name: &str) -> Result<bool> {
        Ok(self.text(name)?.is_some())
    }

    /// The first of these that is set, with its name.
    pub(crate) fn first<'name>(
        &self,
        names: &[&'name str],
    ) -> Result<Option<(&'name str, String)>> {
        for name in names {
            if let Some(text) = self.text(name)? {
                return Ok(Some((name, text)));
            }
        }
        Ok(None)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.parse::<u32>().ok().and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| {
            Error::variable(name, Some(&text), "not a whole number from 0 to 4294967295")
        })
    }

    /// A number that must be there because `because` is.
    pub(crate) fn required_number(&self, name: &str, because: &str) -> Result<usize> {
        self.number(name)?
            .ok_or_else(|| Error::variable(name, None, format!("needed because {because} is set")))
    }

    pub(crate) fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse::<u16>() {
            Ok(port) if port != 0 => Ok(Some(port)),
            _ => Err(Error::variable(name, Some(&text), "not a TCP port from 1 to 65535")),
        }
    }

    /// `RDMA4RS_TIMEOUT`, else half a minute.
    pub(crate) fn timeout(&self) -> Result<Duration> {
        const NAME: &str = "RDMA4RS_TIMEOUT";
        const DAY: f64 = 86_400.0;
        let Some(text) = self.text(NAME)? else { return Ok(Duration::from_secs(30)) };
        match text.parse::<f64>() {
            Ok(seconds) if (0.001..=DAY).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(Error::variable(
                NAME,
                Some(&text),
                "not a number of seconds from 0.001 to 86400",
            )),
        }
    }
}

#[cfg(test)]
pub(crate) fn listed(variables: &[(&str, &str)]) -> Environment<'static> {
    let variables: std::collections::HashMap<String, OsString> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
    Environment { lookup: Box::new(move |name| variables.get(name).cloned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let environment = listed(&[("RANK", ""), ("SIZE", "  ")]);
        assert_eq!(environment.number("RANK").unwrap(), None);
        assert!(!environment.has("SIZE").unwrap());
    }

    #[test]
    fn malformed_numbers_name_the_variable() {
        for text in ["x", "-1", "1.5", "4294967296", "0x10"] {
            let error = listed(&[("RANK", text)]).number("RANK").unwrap_err().to_string();
            assert!(error.starts_with(&format!("RANK is {text:?}: not a whole number")), "{error}");
        }
        for text in ["0", "65536", "http"] {
            let error = listed(&[("MASTER_PORT", text)]).port("MASTER_PORT").unwrap_err();
            assert!(error.to_string().contains("MASTER_PORT"), "{error}");
        }
    }

    #[test]
    fn the_timeout_is_half_a_minute_unless_set() {
        assert_eq!(listed(&[]).timeout().unwrap(), Duration::from_secs(30));
        let set = listed(&[("RDMA4RS_TIMEOUT", "2.5")]);
        assert_eq!(set.timeout().unwrap(), Duration::from_millis(2500));
        for text in ["0", "-3", "nan", "inf", "soon", "1e9"] {
            let error = listed(&[("RDMA4RS_TIMEOUT", text)]).timeout().unwrap_err();
            assert!(error.to_string().contains("RDMA4RS_TIMEOUT"), "{error}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_name_the_variable() {
        use std::os::unix::ffi::OsStringExt;
        let environment =
            Environment { lookup: Box::new(|_| Some(OsString::from_vec(vec![0xFF, b'1']))) };
        let error = environment.number("WORLD_SIZE").unwrap_err().to_string();
        assert!(error.contains("WORLD_SIZE") && error.contains("UTF-8"), "{error}");
    }
}
