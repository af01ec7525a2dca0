//! What changed since the last report.

use super::markdown::number;
use super::report::{Report, Table};

/// A number of ours that moved by more than the threshold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    pub(crate) table: String,
    pub(crate) row: String,
    pub(crate) column: String,
    pub(crate) unit: String,
    pub(crate) before: f64,
    pub(crate) now: f64,
    pub(crate) is_worse: bool,
}

impl Change {
    /// The change as a line for a user.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}: {}, {}, {}: {} {} before, {} now ({:+.1} %)",
            if self.is_worse { "worse" } else { "better" },
            self.table,
            self.row,
            self.column,
            number(Some(self.before)),
            self.unit,
            number(Some(self.now)),
            (self.now / self.before - 1.0) * 100.0
        )
    }
}

/// Our numbers that are in both reports and differ by more than `threshold` percent.
pub(crate) fn changes(before: &Report, now: &Report, threshold: f64) -> Vec<Change> {
    let tables = now.tables.iter().filter_map(|table| Some((before.table(&table.id)?, table)));
    tables
        .filter(|(before, now)| before.unit == now.unit)
        .flat_map(|(before, now)| changes_of(before, now, threshold))
        .collect()
}

fn changes_of(before: &Table, now: &Table, threshold: f64) -> Vec<Change> {
    let mut changes = Vec::new();
    for (place, column) in now.columns.iter().enumerate().filter(|(_, column)| column.is_ours) {
        for row in &now.rows {
            let value = row.values.get(place).copied().flatten();
            let (Some(then), Some(value)) = (before.value(&row.name, &column.name), value) else {
                continue;
            };
            let by = (value / then - 1.0) * 100.0;
            // Also true where one of the numbers is zero.
            if by.is_nan() || by.abs() <= threshold {
                continue;
            }
            changes.push(Change {
                table: now.id.clone(),
                row: row.name.clone(),
                column: column.name.clone(),
                unit: now.unit.clone(),
                before: then,
                now: value,
                is_worse: (by < 0.0) == now.more_is_better,
            });
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn only_our_numbers_count_and_only_beyond_the_threshold() {
        assert_eq!(changes(&report(100.0), &report(96.0), 5.0), []);
        let found = changes(&report(100.0), &report(90.0), 5.0);
        assert_eq!(found.len(), 1);
        assert!(found[0].is_worse);
        let line = found[0].describe();
        assert_eq!(line, "worse: write, 8, ours: 100 MB/s before, 90 now (-10.0 %)");
        assert!(!changes(&report(100.0), &report(110.0), 5.0)[0].is_worse);

        let mut others = report(100.0);
        others.tables[0].put("8", 0, 99.0);
        assert_eq!(changes(&report(100.0), &others, 5.0), []);
    }

    #[test]
    fn less_is_better_where_the_table_says_so() {
        let (mut before, mut now) = (report(100.0), report(120.0));
        before.tables[0].more_is_better = false;
        now.tables[0].more_is_better = false;
        assert!(changes(&before, &now, 5.0)[0].is_worse);
    }

    #[test]
    fn what_is_new_is_no_change() {
        let mut now = report(100.0);
        now.tables[0].put("1", 1, 3.0);
        assert_eq!(changes(&report(100.0), &now, 5.0), []);
        assert_eq!(changes(&Report::default(), &now, 5.0), []);
        now.tables[0].unit = "GB/s".into();
        now.tables[0].put("8", 1, 1.0);
        assert_eq!(changes(&report(100.0), &now, 5.0), []);
    }
}
