//! The table of symbols: one value that says where each verb is found.

use std::{fmt, sync::OnceLock};

use crate::{ConnectionManager, Efa, Verbs};

/// A function of one of the libraries, and the rdma-core release that brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The C name.
    pub name: &'static str,
    /// The rdma-core release, empty where the symbols files do not say.
    pub since: &'static str,
}

/// Makes a table of optional function pointers out of a list of C functions.
macro_rules! table {
    (
        $(#[$doc:meta])*
        pub struct $table:ident {
            $($name:ident($($parameter:ident: $type:ty),* $(,)?) $(-> $result:ty)?, since $since:literal;)*
        }
    ) => {
        $(#[$doc])*
        ///
        /// A function that the installed library does not have is `None`.
        #[derive(Debug, Clone, Copy)]
        pub struct $table {
            $(pub $name: Option<unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?>,)*
        }

        impl $table {
            /// A table with no function in it, to be filled by whoever makes a library.
            pub const EMPTY: Self = Self { $($name: None,)* };

            /// Every function there can be.
            pub const SYMBOLS: &'static [$crate::library::Symbol] =
                &[$($crate::library::Symbol { name: stringify!($name), since: $since },)*];

            /// Resolves each function on its own.
            pub(crate) fn load(library: &libloading::Library) -> Self {
                Self {
                    // SAFETY: the type is the one that the header declares for this name.
                    $($name: unsafe { library.get(stringify!($name)) }.ok().map(|symbol| *symbol),)*
                }
            }
        }
    };
}
pub(crate) use table;

/// The rdma-core release that brought the C function `name`; `None` if that is not known.
#[must_use]
pub fn since(name: &str) -> Option<&'static str> {
    [Verbs::SYMBOLS, ConnectionManager::SYMBOLS, Efa::SYMBOLS]
        .into_iter()
        .flatten()
        .find(|symbol| symbol.name == name && !symbol.since.is_empty())
        .map(|symbol| symbol.since)
}

/// Where the verbs come from: rdma-core on this machine, or a device in software.
///
/// Objects made through one library must stay with it; safe crates remember it with each object.
pub struct Library {
    name: &'static str,
    verbs: Verbs,
    connection_manager: OnceLock<Result<ConnectionManager, LoadError>>,
    efa: OnceLock<Result<Efa, LoadError>>,
}

impl Library {
    /// A library made of given functions, called `name` in messages.
    ///
    /// # Safety
    ///
    /// Each function in the tables keeps the contract that the manual page of its name states, for
    /// as long as the process lives, and the objects they return have the layout of this crate.
    #[must_use]
    pub const unsafe fn new(name: &'static str, verbs: Verbs) -> Self {
        Self { name, verbs, connection_manager: OnceLock::new(), efa: OnceLock::new() }
    }

    /// Adds the functions of librdmacm. Without them the installed librdmacm is opened on first use.
    ///
    /// # Safety
    ///
    /// As for [`Library::new`].
    #[must_use]
    pub unsafe fn with_connection_manager(self, table: ConnectionManager) -> Self {
        Self { connection_manager: OnceLock::from(Ok(table)), ..self }
    }

    /// Adds the functions of libefa. Without them the installed libefa is opened on first use.
    ///
    /// # Safety
    ///
    /// As for [`Library::new`].
    #[must_use]
    pub unsafe fn with_efa(self, table: Efa) -> Self {
        Self { efa: OnceLock::from(Ok(table)), ..self }
    }

    /// The installed rdma-core. Opens `libibverbs.so.1` on first use, never closes it.
    ///
    /// # Errors
    ///
    /// The library is not installed, or its own dependencies are broken.
    pub fn system() -> Result<&'static Self, &'static LoadError> {
        static SYSTEM: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        SYSTEM
            .get_or_init(|| {
                let verbs = Verbs::load(open("libibverbs.so.1", "libibverbs1 ibverbs-providers")?);
                // SAFETY: these are the functions of rdma-core, and its library stays open.
                Ok(unsafe { Self::new("rdma-core", verbs) })
            })
            .as_ref()
    }

    /// What the library is called in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The functions of libibverbs.
    #[must_use]
    pub fn verbs(&self) -> &Verbs {
        &self.verbs
    }

    /// The functions of librdmacm; opens it on first use.
    ///
    /// # Errors
    ///
    /// The library is not installed.
    pub fn connection_manager(&self) -> Result<&ConnectionManager, &LoadError> {
        self.connection_manager
            .get_or_init(|| Ok(ConnectionManager::load(open("librdmacm.so.1", "librdmacm1")?)))
            .as_ref()
    }

    /// The functions of libefa; opens it on first use.
    ///
    /// # Errors
    ///
    /// The library is not installed.
    pub fn efa(&self) -> Result<&Efa, &LoadError> {
        self.efa.get_or_init(|| Ok(Efa::load(open("libefa.so.1", "ibverbs-providers")?))).as_ref()
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Opens a library for the rest of the process: code in it may be called until the very end.
fn open(
    file: &'static str,
    package: &'static str,
) -> Result<&'static libloading::Library, LoadError> {
    // SAFETY: the initialisers of rdma-core's libraries have no preconditions.
    match unsafe { libloading::Library::new(file) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(source) => Err(LoadError { file, package, source }),
    }
}

/// A library of rdma-core that could not be opened.
#[derive(Debug)]
pub struct LoadError {
    file: &'static str,
    package: &'static str,
    source: libloading::Error,
}

impl LoadError {
    /// The file that was looked for.
    #[must_use]
    pub fn file(&self) -> &'static str {
        self.file
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, package, source: _ } = self;
        write!(
            f,
            "{file} cannot be opened: install rdma-core (Debian and Ubuntu: apt install {package}; \
             Fedora and RHEL: dnf install rdma-core), or put the folder that has it into LD_LIBRARY_PATH"
        )
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_symbol_knows_the_release_that_brought_it() {
        assert_eq!(since("ibv_reg_dmabuf_mr"), Some("34"));
        assert_eq!(since("efadv_query_cq"), Some("59"));
        assert_eq!(since("ibv_no_such_verb"), None);
    }

    #[test]
    fn a_missing_library_names_the_package_to_install() {
        let error = open("libnothing-of-this-name.so.1", "libnothing1").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("libnothing-of-this-name.so.1"), "{text}");
        assert!(text.contains("apt install libnothing1"), "{text}");
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn a_given_library_has_just_the_functions_given() {
        // SAFETY: no function is in the table.
        let library = unsafe { Library::new("nothing", Verbs::EMPTY).with_efa(Efa::EMPTY) };
        assert!(library.verbs().ibv_open_device.is_none());
        assert!(library.efa().unwrap().efadv_query_device.is_none());
    }
}
