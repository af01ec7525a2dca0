//! The user's cache folder: layers, each built once and keyed by what it was made from.
//!
//! A layer is a folder `NAME-KEY`. It is built under another name and renamed when it is whole, with
//! its recipe in a file, so that a build that was interrupted never looks finished. Builds of one
//! layer are serialised by a lock file, between processes and between clones of the repository.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::{During, Error, Result};
use crate::process;
use crate::progress::{Step, note};

/// The file in a finished layer that holds its recipe.
const RECIPE_FILE: &str = "recipe";

/// The extension of a layer that is being built.
const PARTIAL: &str = "partial";

/// Something that takes long to make and is then only read.
pub(crate) trait Layer {
    /// A short name for the folder.
    fn name(&self) -> String;

    /// What is being done, for the progress line.
    fn title(&self) -> String;

    /// Everything the result depends on. Two recipes that differ are two layers.
    fn recipe(&self) -> String;

    /// Makes the layer in the empty `folder`.
    fn build(&self, folder: &Path, step: &Step) -> Result<()>;

    /// The files without which a finished layer is of no use; a layer that lost one is built again.
    fn essentials(&self) -> Vec<PathBuf>;
}

/// The cache folder.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// Opens `$XDG_CACHE_HOME/rdma4rs`, or `~/.cache/rdma4rs`, and creates it when needed.
    pub(crate) fn open() -> Result<Self> {
        let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
            (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache),
            (_, Some(home)) => PathBuf::from(home).join(".cache"),
            _ => {
                return Err(Error::Host(
                    "neither XDG_CACHE_HOME nor HOME is set: there is no place for the cache"
                        .into(),
                ));
            }
        };
        Self::at(base.join("rdma4rs"))
    }

    fn at(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).during(|| format!("create {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// The folder itself, for small files that are not layers.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The finished layer's folder, or nothing if it must be built first.
    pub(crate) fn finished(&self, layer: &dyn Layer) -> Option<PathBuf> {
        let folder = self.folder_of(layer);
        let same = fs::read_to_string(folder.join(RECIPE_FILE)).ok()? == layer.recipe();
        let whole = layer.essentials().iter().all(|file| folder.join(file).exists());
        (same && whole).then_some(folder)
    }

    /// The layer's folder, built now if it is not there. Waits for another process that builds it.
    pub(crate) fn ensure(&self, layer: &dyn Layer) -> Result<PathBuf> {
        if let Some(folder) = self.finished(layer) {
            return Ok(folder);
        }
        let _lock = self.lock(&layer.name())?;
        match self.finished(layer) {
            Some(folder) => Ok(folder),
            None => self.build(layer),
        }
    }

    /// Builds the layer even if it is there, and puts the new one in its place.
    pub(crate) fn renew(&self, layer: &dyn Layer) -> Result<PathBuf> {
        let _lock = self.lock(&layer.name())?;
        self.build(layer)
    }

    /// Builds under the lock. What is there stays until the new layer is whole.
    fn build(&self, layer: &dyn Layer) -> Result<PathBuf> {
        let folder = self.folder_of(layer);
        let partial = folder.with_extension(PARTIAL);
        self.remove_abandoned(&layer.name())?;
        fs::create_dir(&partial).during(|| format!("create {}", partial.display()))?;
        let step = Step::start(layer.title());
        layer.build(&partial, &step)?;
        let recipe = partial.join(RECIPE_FILE);
        fs::write(&recipe, layer.recipe()).during(|| format!("write {}", recipe.display()))?;
        if folder.exists() {
            remove_folder(&folder)?;
        }
        fs::rename(&partial, &folder).during(|| format!("rename {}", partial.display()))?;
        step.done();
        Ok(folder)
    }

    /// Holds the lock `name` until the file is dropped.
    fn lock(&self, name: &str) -> Result<File> {
        let path = self.folder.join(format!("{name}.lock"));
        let file = File::create(&path).during(|| format!("create {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            note(&format!("another process is building `{name}`; waiting for it"));
            flock(&file, FlockOperation::LockExclusive)
                .during(|| format!("lock {}", path.display()))?;
        }
        // Programs that the build starts inherit the lock: one that outlives us still keeps others out.
        fcntl_setfd(&file, FdFlags::empty()).during(|| format!("share {}", path.display()))?;
        Ok(file)
    }

    /// Removes what interrupted builds left. The caller holds the lock, so no build is running.
    fn remove_abandoned(&self, name: &str) -> Result<()> {
        let entries =
            fs::read_dir(&self.folder).during(|| format!("read {}", self.folder.display()))?;
        for entry in entries.filter_map(std::io::Result::ok) {
            let path = entry.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let ours = stem.rsplit_once('-').is_some_and(|(layer, _key)| layer == name);
            if ours && path.extension().is_some_and(|extension| extension == PARTIAL) {
                note(&format!("removing what an interrupted build left: {}", path.display()));
                remove_folder(&path)?;
            }
        }
        Ok(())
    }

    fn folder_of(&self, layer: &dyn Layer) -> PathBuf {
        self.folder.join(format!("{}-{:016x}", layer.name(), fingerprint(&layer.recipe())))
    }
}

/// Removes a folder and everything in it but never crosses a mount point,
/// so that a mount left inside by an interrupted build is not emptied.
fn remove_folder(folder: &Path) -> Result<()> {
    process::output_of(Command::new("rm").args(["-rf", "--one-file-system", "--"]).arg(folder))?;
    Ok(())
}

/// FNV-1a, 64 bits. Only names folders: a finished layer's recipe is compared in full.
pub(crate) fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Note {
        text: &'static str,
        builds: Cell<u32>,
        fails: bool,
    }

    impl Layer for Note {
        fn name(&self) -> String {
            "note".into()
        }
        fn title(&self) -> String {
            "writing a note".into()
        }
        fn recipe(&self) -> String {
            self.text.into()
        }
        fn build(&self, folder: &Path, _step: &Step) -> Result<()> {
            self.builds.set(self.builds.get() + 1);
            let file = folder.join("note");
            fs::write(&file, self.text).during(|| format!("write {}", file.display()))?;
            if self.fails { Err(Error::Host("interrupted".into())) } else { Ok(()) }
        }
        fn essentials(&self) -> Vec<PathBuf> {
            vec!["note".into()]
        }
    }

    fn note_layer(text: &'static str, fails: bool) -> Note {
        Note { text, builds: Cell::new(0), fails }
    }

    fn temporary(name: &str) -> Cache {
        let folder = std::env::temp_dir().join(format!("cache-test-{name}-{}", std::process::id()));
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        Cache::at(folder).unwrap()
    }

    #[test]
    fn fingerprint_is_fnv_1a() {
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint("a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn a_layer_is_built_once() {
        let cache = temporary("once");
        let layer = note_layer("one", false);
        let first = cache.ensure(&layer).unwrap();
        assert_eq!(cache.ensure(&layer).unwrap(), first);
        assert_eq!(layer.builds.get(), 1);
        assert_ne!(cache.ensure(&note_layer("two", false)).unwrap(), first);
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn an_interrupted_build_is_started_again() {
        let cache = temporary("interrupted");
        cache.ensure(&note_layer("one", true)).unwrap_err();
        let layer = note_layer("one", false);
        assert_eq!(cache.finished(&layer), None);
        let folder = cache.ensure(&layer).unwrap();
        assert!(!folder.with_extension(PARTIAL).exists());
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn a_renewed_layer_replaces_the_old_one_only_when_whole() {
        let cache = temporary("renewed");
        let folder = cache.ensure(&note_layer("one", false)).unwrap();
        cache.renew(&note_layer("one", true)).unwrap_err();
        assert_eq!(cache.finished(&note_layer("one", false)), Some(folder));
        let layer = note_layer("one", false);
        cache.renew(&layer).unwrap();
        assert_eq!(layer.builds.get(), 1);
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn a_layer_that_lost_a_file_is_built_again() {
        let cache = temporary("lost");
        let layer = note_layer("one", false);
        let folder = cache.ensure(&layer).unwrap();
        fs::remove_file(folder.join("note")).unwrap();
        cache.ensure(&layer).unwrap();
        assert_eq!(layer.builds.get(), 2);
        assert!(folder.join("note").exists());
        fs::remove_dir_all(cache.folder()).unwrap();
    }
}
