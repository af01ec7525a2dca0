//! What is shown on standard error while it runs: a bar on a terminal, a line for each size elsewhere.

use std::{
    io::{IsTerminal, stderr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// How often the bar is drawn.
const DRAWN: Duration = Duration::from_millis(100);

/// How far a round has come. The loop only counts; another thread draws.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether this rank shows anything.
    shown: bool,
    counted: Arc<AtomicU64>,
}

impl Progress {
    pub(crate) fn new(shown: bool) -> Self {
        Self { shown, counted: Arc::default() }
    }

    #[inline(always)]
    pub(crate) fn add(&self, count: usize) {
        // One thread writes.
        let counted = self.counted.load(Ordering::Relaxed) + count as u64;
        self.counted.store(counted, Ordering::Relaxed);
    }

    /// Shows that something has begun, until what is returned is dropped. `total` is how many steps are counted.
    pub(crate) fn begin(&self, what: &str, total: u64) -> Option<Drawing> {
        self.counted.store(0, Ordering::Relaxed);
        if !self.shown {
            return None;
        }
        if !stderr().is_terminal() {
            output::note(&format!("{what} …"));
            return None;
        }
        let bar = ProgressBar::new(total);
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {percent}% {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        let (counted, ended) = (Arc::clone(&self.counted), Arc::new(AtomicBool::new(false)));
        let (drawn, stop) = (bar.clone(), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                drawn.set_position(counted.load(Ordering::Relaxed));
                thread::park_timeout(DRAWN);
            }
        });
        Some(Drawing { bar, ended, thread: Some(thread) })
    }
}

/// A bar that is being drawn.
#[derive(Debug)]
pub(crate) struct Drawing {
    bar: ProgressBar,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Drawing {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only draws; if it could not, nothing is lost.
            drop(thread.join());
        }
        self.bar.finish_and_clear();
    }
}
