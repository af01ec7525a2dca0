//! What is logged, as a value.

use std::{cell::RefCell, sync::Once};

thread_local! {
    static LINES: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps what is logged, for each thread its own.
struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES
            .with_borrow_mut(|lines| *lines += &format!("{}: {}\n", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// What `act` returned, and what was logged meanwhile.
pub(crate) fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Keeper).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    LINES.take();
    let result = act();
    (result, LINES.take())
}
