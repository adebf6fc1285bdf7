//! Tables for people, with columns as wide as their content.

use rollout_wire::text::printable;

/// A table with a header.
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    pub(crate) fn row(&mut self, row: [String; N]) {
        self.rows.push(row.map(|cell| if cell.is_empty() { "-".to_owned() } else { printable(&cell) }));
    }

    /// Renders the table, or `if_none` if it has no rows.
    pub(crate) fn text(&self, if_none: &str) -> String {
        if self.rows.len() == 1 {
            return format!("{if_none}\n");
        }
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; N] = std::array::from_fn(width);
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let mut table = Table::new(["name", "active"]);
        assert_eq!(table.text("there are none"), "there are none\n");
        table.row(["a-longer-name".to_owned(), String::new()]);
        table.row(["b\u{1b}[2J".to_owned(), "3".to_owned()]);
        let text = table.text("");
        assert!(text.starts_with("name           active\na-longer-name  -\n"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
