//! Tables as Markdown, and their places in documents.
//!
//! A place is a line `<!-- bench: ID -->` and all that follows it up to a line `<!-- end of bench -->`.

use super::report::Table;

const BEGIN: &str = "<!-- bench: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end of bench -->";

/// A table as lines of Markdown.
pub(crate) fn render(table: &Table) -> String {
    let mut lines = Vec::new();
    let names = table.columns.iter().map(|column| column.name.as_str());
    lines.push(line(std::iter::once(table.heading.as_str()).chain(names)));
    lines.push(format!("|---|{}", "---:|".repeat(table.columns.len())));
    for row in &table.rows {
        let values: Vec<_> = row.values.iter().map(|value| number(*value)).collect();
        let cells = values.iter().map(String::as_str);
        lines.push(line(std::iter::once(row.name.as_str()).chain(cells)));
    }
    lines.join("\n") + "\n"
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let mut line = "|".to_owned();
    for cell in cells {
        line.push(' ');
        line.push_str(cell);
        line.push_str(if cell.is_empty() { "|" } else { " |" });
    }
    line
}

/// All digits before the point, and as many after it as mean something; nothing where nothing was measured.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// The names of the tables that a document has places for.
pub(crate) fn places(document: &str) -> Vec<&str> {
    document.lines().filter_map(|line| line.strip_prefix(BEGIN)?.strip_suffix(BEGIN_END)).collect()
}

/// The document with a table put where its place is; unchanged if there is none.
pub(crate) fn put(document: &str, table: &Table) -> Result<String, String> {
    let begin = format!("{BEGIN}{}{BEGIN_END}\n", table.id);
    let Some((before, rest)) = document.split_once(&begin) else {
        return Ok(document.to_owned());
    };
    let Some((_, after)) = rest.split_once(END) else {
        return Err(format!("the place of `{}` does not end", table.id));
    };
    // The empty lines make it a table for every reader of Markdown.
    Ok(format!("{before}{begin}\n{}\n{END}{after}", render(table)))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    const TABLE: &str = "\
| bytes | perftest | ours |
|---|---:|---:|
| 8 | 1.25 | 2 |
| 4096 || 512 |
";

    #[test]
    fn tables_have_a_cell_for_each_number() {
        assert_eq!(render(&report(2.0).tables[0]).replace("| |", "||"), TABLE);
        let mut table = report(2.0).tables.remove(0);
        table.heading = String::new();
        assert!(render(&table).starts_with("| | perftest | ours |\n"));
    }

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        let shown = [1234.56, 123.4, 12.34, 1.234, 5.0].map(|value| number(Some(value)));
        assert_eq!(shown, ["1235", "123.4", "12.3", "1.23", "5"]);
        assert_eq!(number(None), "");
    }

    #[test]
    fn a_table_takes_the_place_of_the_last_one_and_of_nothing_else() {
        let document = "above\n<!-- bench: write -->\nold\n<!-- end of bench -->\n\
                        <!-- bench: read -->\nkept\n<!-- end of bench -->\nbelow\n";
        assert_eq!(places(document), ["write", "read"]);
        let once = put(document, &report(2.0).tables[0]).unwrap();
        assert!(once.starts_with("above\n<!-- bench: write -->\n\n| bytes |"), "{once}");
        assert!(once.contains("kept") && once.ends_with("below\n") && !once.contains("old"));
        let twice = put(&once, &report(2.0).tables[0]).unwrap();
        assert_eq!(once, twice);
        let elsewhere = "no place";
        assert_eq!(put(elsewhere, &report(2.0).tables[0]).unwrap(), elsewhere);
        put("<!-- bench: write -->\n", &report(2.0).tables[0]).unwrap_err();
    }
}
