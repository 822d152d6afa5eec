//! Tests of the page about a reproduction.

use super::*;

/// A cell with an accuracy and a difference to ProtoNet, both measured and published.
fn cell(accuracy: f64, difference: f64, published: f64, published_difference: f64) -> Cell {
    Cell {
        measured: Some(Measured {
            accuracy,
            ci95: Some(0.1),
            difference: Some(difference),
            gap_closed: None,
        }),
        published: Some(Published {
            accuracy: published,
            ci95: Some(0.1),
            difference: Some(published_difference),
        }),
        ..Cell::default()
    }
}

#[test]
fn agreement_compares_the_accuracy_and_the_difference_to_protonet() {
    assert_eq!(cell(57.0, 5.0, 58.9, 5.5).agreement(), Some(Agreement::Agrees));
    assert_eq!(cell(57.0, 5.0, 59.9, 5.5).agreement(), Some(Agreement::Partly));
    assert_eq!(cell(57.0, 5.0, 58.9, 6.5).agreement(), Some(Agreement::Partly));
    assert_eq!(cell(57.0, 5.0, 59.9, 7.5).agreement(), Some(Agreement::Differs));
    assert_eq!(Cell { published: None, ..cell(57.0, 5.0, 0.0, 0.0) }.agreement(), None);
}

/// A report with one table of two rows and one figure.
fn small() -> Reproduction {
    let missing = Cell { missing: Some("no data".into()), ..Cell::default() };
    let row = |name: &str, reference, first| Row {
        name: name.into(),
        reference,
        cells: vec![first, missing.clone()],
    };
    Reproduction {
        title: "A <title>".into(),
        facts: vec![("scale".into(), "0.1".into())],
        warnings: vec!["training was shortened".into()],
        tables: vec![Table {
            name: "t".into(),
            title: "Noise".into(),
            dataset: "set & co".into(),
            noise: NoiseKind::Symmetric,
            samples: None,
            levels: vec![0.0, 0.4],
            rows: vec![
                row("Oracle", Some(Reference::Oracle), cell(60.0, 4.0, 61.0, 4.0)),
                row("A_row", None, cell(57.0, 5.0, 59.9, 7.5)),
            ],
            notes: vec!["a note".into()],
            commands: vec!["trueshot eval x".into()],
            curves: vec![],
        }],
        figures: vec![Figure {
            name: "f".into(),
            title: "Sets".into(),
            dataset: "set & co".into(),
            caption: "Look at the *frames*.".into(),
            panels: vec![
                Panel { title: "paired".into(), markup: "<svg id=\"p\"></svg>".into(), missing: None },
                Panel { title: "outlier".into(), markup: String::new(), missing: Some("no outliers".into()) },
            ],
            commands: vec!["trueshot episode x".into()],
        }],
        plotted_rows: vec!["A_row".into()],
    }
}

#[test]
fn a_chart_of_the_chosen_rows_stands_first_and_the_commands_are_in_a_file_of_their_own() {
    let mut report = small();
    assert!(report.plots().is_empty(), "one level is no line");
    for row in &mut report.tables[0].rows {
        row.cells[1] = row.cells[0].clone();
    }
    let (name, svg) = report.plots().remove(0);
    assert_eq!(name, "report-set---co.svg");
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("A_row") && !svg.contains("Oracle"), "{svg}");
    let markdown = report.markdown();
    assert!(markdown.contains("![Accuracy against noise](report-set---co.svg)"), "{markdown}");
    assert!(!markdown.contains("trueshot eval x"), "{markdown}");
    let commands = report.commands();
    assert!(commands.contains("trueshot eval x") && commands.contains("trueshot episode x"), "{commands}");
}

#[test]
fn the_summary_counts_the_cells_of_the_paper() {
    let summary = small().summary();
    assert!(summary.contains("| Noise, set & co | 1 (50 %) | 0 | 1 | 0 |"), "{summary}");
    assert!(summary.ends_with("| **all** | 1 (50 %) | 0 | 1 | 0 |\n"), "{summary}");
}

#[test]
fn on_a_data_set_that_replaces_another_only_differences_are_shown_and_no_cell_counts_as_a_comparison() {
    let other = Cell { published: None, paper_difference: Some(7.5), ..cell(57.0, 5.0, 0.0, 0.0) };
    assert_eq!(other.text(), "57.00 ±0.10 (+5.0, paper +7.5)");
    assert_eq!(other.agreement(), None);
    let mut report = small();
    report.tables[0].rows.iter_mut().for_each(|row| row.cells = vec![other.clone()]);
    assert!(report.summary().is_empty());
    assert!(report.tables[0].counts_in_words().starts_with("differences to ProtoNet beside"));
}

#[test]
fn ranks_are_among_the_rows_that_are_not_references() {
    let mut table = small().tables.remove(0);
    let row = |name: &str, measured, published| Row {
        name: name.into(),
        reference: None,
        cells: vec![cell(measured, 0.0, published, 0.0), Cell::default()],
    };
    // Row b is the best here and the worst in the paper, by more than the intervals. Rows c and d have another order
    // than in the paper, but by less than the intervals.
    table.rows.extend([row("b", 58.0, 55.0), row("c", 57.1, 58.0), row("d", 57.05, 58.05)]);
    table.rank_cells();
    let orders: Vec<_> = table.rows.iter().map(|row| row.cells[0].order.clone()).collect();
    assert_eq!(orders[0], None, "the oracle is a reference");
    let ranks: Vec<_> = orders[1..].iter().flatten().map(|o| (o.measured_rank, o.published_rank)).collect();
    assert_eq!(ranks, [(4, 1), (1, 4), (2, 3), (3, 2)]);
    assert_eq!(orders[1].as_ref().unwrap().reversed, ["b"]);
    assert_eq!(orders[2].as_ref().unwrap().reversed, ["A_row", "c", "d"]);
    assert_eq!(table.rows[2].cells[0].text(), "58.00 ±0.10 (55.00) ? #1 (#4) ≠");
    assert!(
        table
            .counts_in_words()
            .ends_with("0 of 4 with the same rank as in the paper, 3 pairs of rows in the opposite order")
    );
}

#[test]
fn levels_can_be_shown_as_numbers_of_wrong_samples() {
    let mut table = small().tables.remove(0);
    table.samples = Some(5);
    assert_eq!(table.columns(), ["0 of 5", "2 of 5"]);
    table.rows[0].cells[1] = table.rows[0].cells[0].clone();
    let chart = table.chart(&[]).unwrap();
    assert!(chart.contains("mislabelled samples of 5 per class, symmetric noise"), "{chart}");
}

#[test]
fn figures_are_on_the_page_and_mentioned_in_the_other_formats() {
    let html = small().html();
    assert!(html.contains("<svg id=\"p\"></svg>") && html.contains("no outliers"), "{html}");
    let markdown = small().markdown();
    assert!(markdown.contains("- paired: in report.html\n- outlier: not drawn, no outliers"), "{markdown}");
    assert!(small().latex().contains("% - paired: in report.html"));
}

#[test]
fn every_format_shows_measured_and_published() {
    let markdown = small().markdown();
    assert!(markdown.contains("| A\\_row | 57.00 ±0.10 (59.90) ! | - |"), "{markdown}");
    assert!(
        markdown.contains("1 cell agrees with the paper, 0 partly, 1 disagree, 2 not measured"),
        "{markdown}"
    );
    let latex = small().latex();
    assert!(latex.contains("A\\_row & \\textbf{57.00 $\\pm$0.10} (59.90) ! & - \\\\"), "{latex}");
    assert!(latex.contains("Oracle & 60.00 $\\pm$0.10 (61.00) & - \\\\"), "{latex}");
    let html = small().html();
    assert!(html.contains("A &#60;title&#62;") || html.contains("A &lt;title&gt;"), "{html}");
    assert!(html.contains("class=\"differs best\"") && html.contains("class=\"missing\""), "{html}");
    let json: serde_json::Value = serde_json::from_str(&small().json()).unwrap();
    assert_eq!(json["tables"][0]["rows"][1]["cells"][0]["published"]["accuracy"], 59.9);
}
