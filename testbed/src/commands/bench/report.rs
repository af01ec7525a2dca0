//! What was measured, as tables, and the file that keeps them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::error::{During, Error, Result};

/// The tables of one part of the benchmarks, and what they were made with.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Report {
    /// Programs and their versions.
    pub(crate) made_with: Vec<(String, String)>,
    pub(crate) tables: Vec<Table>,
}

/// Numbers in rows and columns, all of one unit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    /// The name between the marks of a document.
    pub(crate) id: String,
    /// Above the names of the rows.
    pub(crate) heading: String,
    pub(crate) unit: String,
    /// Whether a larger number is the better one.
    pub(crate) more_is_better: bool,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

/// Who was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Whether the numbers are of this project's code, so that worse ones are a regression.
    pub(crate) is_ours: bool,
}

/// One thing that was measured, a number for each column that has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<f64>>,
}

impl Column {
    pub(crate) fn ours(name: &str) -> Self {
        Self { name: name.into(), is_ours: true }
    }

    pub(crate) fn of_others(name: &str) -> Self {
        Self { name: name.into(), is_ours: false }
    }
}

impl Table {
    /// Puts a number where row and column meet; the row is made if it is not there.
    pub(crate) fn put(&mut self, row: &str, column: usize, value: f64) {
        let width = self.columns.len();
        let there = self.rows.iter().position(|other| other.name == row);
        let place = there.unwrap_or_else(|| {
            self.rows.push(Row { name: row.into(), values: vec![None; width] });
            self.rows.len() - 1
        });
        if let Some(cell) = self.rows.get_mut(place).and_then(|row| row.values.get_mut(column)) {
            *cell = Some(value);
        }
    }

    /// The number where a row and a column of these names meet.
    pub(crate) fn value(&self, row: &str, column: &str) -> Option<f64> {
        let place = self.columns.iter().position(|other| other.name == column)?;
        self.rows.iter().find(|other| other.name == row)?.values.get(place).copied().flatten()
    }
}

impl Report {
    pub(crate) fn table(&self, id: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.id == id)
    }

    /// Reads a report; none if there is no file.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        let Ok(text) = fs::read_to_string(path) else { return Ok(None) };
        let value = serde_json::from_str(&text).ok();
        let report = value.as_ref().and_then(Self::from_json);
        report.map(Some).ok_or_else(|| Error::Format {
            what: path.display().to_string(),
            found: "no report of a benchmark".into(),
        })
    }

    /// Writes the report; the last one is kept beside it, under `previous`.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).during(|| format!("create {}", folder.display()))?;
        }
        if path.exists() {
            let kept = path.with_extension("previous.json");
            fs::rename(path, &kept).during(|| format!("keep {}", kept.display()))?;
        }
        let text = serde_json::to_string_pretty(&self.to_json())
            .map_err(|error| Error::Format { what: "a report".into(), found: error.to_string() })?;
        fs::write(path, text + "\n").during(|| format!("write {}", path.display()))
    }

    fn to_json(&self) -> Value {
        let tables: Vec<_> = self.tables.iter().map(Table::to_json).collect();
        let made_with: Vec<_> =
            self.made_with.iter().map(|(name, version)| json!([name, version])).collect();
        json!({ "made_with": made_with, "tables": tables })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let pair = |pair: &Value| Some((text(pair.get(0)?)?, text(pair.get(1)?)?));
        Some(Self {
            made_with: list(value, "made_with")?.iter().map(pair).collect::<Option<_>>()?,
            tables: list(value, "tables")?.iter().map(Table::from_json).collect::<Option<_>>()?,
        })
    }
}

impl Table {
    fn to_json(&self) -> Value {
        let columns: Vec<_> = self
            .columns
            .iter()
            .map(|column| json!({ "name": column.name, "is_ours": column.is_ours }))
            .collect();
        let rows: Vec<_> =
            self.rows.iter().map(|row| json!({ "name": row.name, "values": row.values })).collect();
        json!({
            "id": self.id, "heading": self.heading, "unit": self.unit,
            "more_is_better": self.more_is_better, "columns": columns, "rows": rows,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let column = |value: &Value| {
            Some(Column {
                name: text(value.get("name")?)?,
                is_ours: value.get("is_ours")?.as_bool()?,
            })
        };
        let row = |value: &Value| {
            let values = list(value, "values")?.iter().map(Value::as_f64).collect();
            Some(Row { name: text(value.get("name")?)?, values })
        };
        Some(Self {
            id: text(value.get("id")?)?,
            heading: text(value.get("heading")?)?,
            unit: text(value.get("unit")?)?,
            more_is_better: value.get("more_is_better")?.as_bool()?,
            columns: list(value, "columns")?.iter().map(column).collect::<Option<_>>()?,
            rows: list(value, "rows")?.iter().map(row).collect::<Option<_>>()?,
        })
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn list<'value>(value: &'value Value, name: &str) -> Option<&'value Vec<Value>> {
    value.get(name)?.as_array()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One table with a column of ours and one of others.
    pub(in super::super) fn report(ours: f64) -> Report {
        let mut table = Table {
            id: "write".into(),
            heading: "bytes".into(),
            unit: "MB/s".into(),
            more_is_better: true,
            columns: vec![Column::of_others("perftest"), Column::ours("ours")],
            rows: Vec::new(),
        };
        table.put("8", 0, 1.25);
        table.put("8", 1, ours);
        table.put("4096", 1, 512.0);
        Report { made_with: vec![("kernel".into(), "7.3.4".into())], tables: vec![table] }
    }

    #[test]
    fn a_report_survives_its_file_and_the_last_one_is_kept() {
        let folder = std::env::temp_dir().join(format!("report-test-{}", std::process::id()));
        let path = folder.join("verbs.json");
        assert_eq!(Report::read(&path).unwrap(), None);
        report(1.0).write(&path).unwrap();
        report(2.0).write(&path).unwrap();
        assert_eq!(Report::read(&path).unwrap(), Some(report(2.0)));
        let kept = Report::read(&folder.join("verbs.previous.json")).unwrap();
        assert_eq!(kept, Some(report(1.0)));
        fs::write(&path, "[]").unwrap();
        Report::read(&path).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn cells_are_found_by_their_names() {
        let report = report(3.0);
        let table = report.table("write").unwrap();
        assert_eq!(table.value("8", "ours"), Some(3.0));
        assert_eq!(table.value("4096", "perftest"), None);
        assert_eq!(table.value("9", "ours"), None);
        assert_eq!(report.table("read"), None);
    }
}
