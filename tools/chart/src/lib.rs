//! Charts of measurements by message size, as SVG.
//!
//! ```
//! use rdma4rs_chart::{Chart, Panel, Quantity, Series};
//!
//! let write = Series::new("write", [(8, 8e6), (4096, 3.9e9), (65_536, 11.2e9)]);
//! let bandwidth = Panel::new("Bandwidth", Quantity::BytesPerSecond).series(write);
//! let svg = Chart::new("rdma4rs perf").panel(bandwidth).to_svg()?;
//! assert!(svg.contains("64 KiB") && svg.contains("GB/s"));
//! # Ok::<(), rdma4rs_chart::Error>(())
//! ```

mod draw;
mod quantity;
mod ticks;

pub use quantity::Quantity;

/// One or more panels below one title.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    title: String,
    note: String,
    panels: Vec<Panel>,
}

/// One pair of axes: message size to the right, a quantity upwards.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    title: String,
    quantity: Quantity,
    logarithmic: bool,
    series: Vec<Series>,
}

/// One line of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    name: String,
    /// Message size in bytes, and the value in the quantity's unit.
    points: Vec<(u64, f64)>,
}

/// Why there is no chart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to draw.
    #[error(
        "the chart has nothing to draw: panel {panel:?} has no finite value above zero at a message size above zero"
    )]
    Empty {
        /// The panel's title; empty if there is no panel.
        panel: String,
    },
    /// The drawing library refused.
    #[error("the chart could not be drawn: {problem}")]
    Draw {
        /// What it says.
        problem: String,
    },
}

impl Chart {
    /// A chart without panels.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// A line of small print under the title: what was measured, and how.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Adds a panel to the right of the others.
    #[must_use]
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// Draws it, on white ground.
    ///
    /// Values that are not finite and above zero are left out.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] without panels, or for a panel without values; [`Error::Draw`].
    pub fn to_svg(&self) -> Result<String, Error> {
        draw::svg(self)
    }
}

impl Panel {
    /// A panel without series, whose values start at zero.
    #[must_use]
    pub fn new(title: impl Into<String>, quantity: Quantity) -> Self {
        Self { title: title.into(), quantity, logarithmic: false, series: Vec::new() }
    }

    /// Makes equal ratios equally high.
    #[must_use]
    pub fn logarithmic(mut self) -> Self {
        self.logarithmic = true;
        self
    }

    /// Adds a series. Eight can be told apart. One without points takes a colour, so that those after it look as in a
    /// panel where it has some, and is not named.
    #[must_use]
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }
}

impl Series {
    /// Points of message size in bytes and value, in any order.
    #[must_use]
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (u64, f64)>) -> Self {
        let mut points: Vec<_> = points.into_iter().collect();
        points.retain(|(size, value)| *size > 0 && value.is_finite() && *value > 0.0);
        points.sort_by_key(|(size, _)| *size);
        Self { name: name.into(), points }
    }
}
