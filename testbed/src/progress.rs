//! Progress on standard error: a spinner on a terminal, plain lines anywhere else.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// One long step. Dropping it without [`Step::done`] leaves no line behind on a terminal.
#[derive(Debug)]
pub(crate) struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Step {
    /// Announces a step that may take a while.
    pub(crate) fn start(title: impl Into<String>) -> Self {
        let step = Self::quiet(title);
        if step.bar.is_none() {
            note(&format!("{} …", step.title));
        }
        step
    }

    /// The same without lines where there is no terminal; for many short steps.
    pub(crate) fn quiet(title: impl Into<String>) -> Self {
        let title = title.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {wide_msg:.dim}")
            {
                bar.set_style(style);
            }
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { title, started: Instant::now(), bar }
    }

    /// Shows what the step is at; nothing without a terminal.
    pub(crate) fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Ends the step and says how long it took.
    pub(crate) fn done(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        note(&format!("{}: done in {:.1} s", self.title, self.started.elapsed().as_secs_f64()));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// One line on standard error, marked as ours.
pub(crate) fn note(text: &str) {
    eprintln!("testbed: {text}");
}
