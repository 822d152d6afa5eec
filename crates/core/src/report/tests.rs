//! Tests of the evaluation reports: snapshots of the text formats, names that must be escaped, table widths and charts.

use super::{FigureClass, FigureItem, Format, Page, SupportSetFigure, Tables, accuracies, chart};
use crate::episode::Shots;
use crate::evaluate::{
    ClassAccuracy, Comparison, Detection, Difference, Evaluation, MethodResult, SettingResult, Source,
};
use crate::method::Registry;
use crate::noise::NoiseKind;

/// The report of an evaluation with its usual tables.
fn report(evaluation: &Evaluation, format: Format) -> String {
    super::evaluation(evaluation, format, Tables::Usual)
}

/// A name with the special characters of all formats.
const AWKWARD: &str = r#"<a>&"b"|c\d_e,f*g\|h"#;

fn method(name: &str, accuracy: f64) -> MethodResult {
    MethodResult {
        transductive: false,
        method: name.into(),
        accuracy: Some(accuracy),
        ci95: Some(0.16),
        difference: None,
        gap_closed: None,
        detection: None,
        per_class: None,
        confusion: None,
    }
}

fn setting(noise: NoiseKind, level: f64, methods: Vec<MethodResult>) -> SettingResult {
    let (ways, shots, queries, episodes) = (5, Shots::exactly(5), 15, 10_000);
    let (wrong_share, unpaired_episodes, significance) = (level, 0, Vec::new());
    SettingResult {
        noise,
        level,
        wrong_share,
        unpaired_episodes,
        ways,
        shots,
        queries,
        episodes,
        methods,
        significance,
    }
}

fn detection(auroc: f64, calibration_error: Option<f64>) -> Detection {
    Detection { auroc, average_precision: auroc - 0.0625, calibration_error, items: 250_000, wrong: 100_000 }
}

fn evaluation_of(settings: Vec<SettingResult>) -> Evaluation {
    let embeddings = Source {
        path: Some("test.safetensors".into()),
        fingerprint: "0123456789abcdef".into(),
        rows: 4000,
        dim: 1600,
        classes: 20,
        backbone: None,
    };
    Evaluation {
        seed: 7,
        embeddings,
        outliers: None,
        manifest: None,
        baseline: "protonet".into(),
        interrupted: false,
        version: "0.0.0",
        instructions: "portable",
        device: None,
        failed: Vec::new(),
        settings,
    }
}

/// An evaluation with three settings and every kind of result, stopped early.
fn everything() -> Evaluation {
    // Results under noise; `lift` is added to all accuracies.
    let noisy = |lift: f64| {
        let mut methods = vec![
            method("oracle", 61.7 + lift),
            method("protonet", 51.0 + lift),
            method("median", 53.125 + lift),
            method("relabel", 57.0 + lift),
        ];
        for (entry, gap) in methods.iter_mut().zip([1.0, 0.0, 0.1986, 0.5607]) {
            entry.gap_closed = Some(gap);
            entry.difference = Some(Difference { mean: 10.7 * gap, ci95: Some(0.05) });
            let class = |class: &str, accuracy| ClassAccuracy { class: class.into(), queries: 300, accuracy };
            entry.per_class =
                Some(vec![class("crate", 70.0 - 10.0 * gap), class("trifle", 30.0 + 10.0 * gap)]);
            entry.confusion = Some(vec![vec![200, 100], vec![0, 0]]);
        }
        methods[1].difference = None;
        methods[2].detection = Some(detection(0.7175, None));
        methods[3].detection = Some(detection(0.8531, Some(0.0312)));
        methods
    };
    let clean = ["oracle", "protonet", "median", "relabel"].into_iter().zip([67.4, 67.4, 66.8, 67.5]);
    let mut all = evaluation_of(vec![
        setting(NoiseKind::Symmetric, 0.0, clean.map(|(name, accuracy)| method(name, accuracy)).collect()),
        setting(NoiseKind::Symmetric, 0.4, noisy(0.0)),
        setting(NoiseKind::Outlier, 0.3333, noisy(1.5)),
    ]);
    let comparison = |method: &str, against: &str, difference, p_corrected| Comparison {
        method: method.into(),
        against: against.into(),
        difference,
        ci95: Some(0.1),
        p: p_corrected / 6.0,
        p_corrected,
    };
    all.settings[1].significance =
        vec![comparison("oracle", "protonet", 10.7, 0.0), comparison("median", "relabel", -0.02, 0.7)];
    all.interrupted = true;
    all
}

/// An evaluation whose baseline, class and file have names with special characters.
fn awkward() -> Evaluation {
    let mut entry = method(AWKWARD, 50.0);
    let class = ClassAccuracy { class: AWKWARD.into(), queries: 1, accuracy: 50.0 };
    entry.per_class = Some(vec![class]);
    entry.detection = Some(detection(0.75, None));
    let difference = Some(Difference { mean: 1.0, ci95: None });
    let other = |accuracy| MethodResult { difference, ..method("median", accuracy) };
    let mut evaluation = evaluation_of(vec![
        setting(NoiseKind::Symmetric, 0.0, vec![method(AWKWARD, 60.0), other(61.0)]),
        setting(NoiseKind::Symmetric, 0.4, vec![entry, other(51.0)]),
    ]);
    evaluation.embeddings.path = Some(AWKWARD.into());
    evaluation.baseline = AWKWARD.into();
    evaluation
}

#[test]
fn the_table_matches_its_snapshot() {
    insta::assert_snapshot!(report(&everything(), Format::Table));
}

#[test]
fn custom_noise_and_notes_are_shown_and_escaped() {
    let mine = NoiseKind::try_from("<script>alert(1)</script>".to_string()).unwrap();
    let methods = || vec![method("protonet", 50.0), method("median", 51.0)];
    let mut evaluation = evaluation_of(vec![
        setting(NoiseKind::Symmetric, 0.4, methods()),
        setting(mine, 0.25, methods()),
        setting(mine, 0.0, methods()),
    ]);
    evaluation.settings[0].wrong_share = 0.1234;
    let problem = "ValueError: <no>".to_string();
    evaluation.failed.push(crate::evaluate::FailedMethod { method: "mine".into(), episode: 7, problem });
    let text = report(&evaluation, Format::Table);
    assert!(text.contains("\nunder symmetric noise of 40 %, 12.34 % of the labels are wrong\n"), "{text}");
    assert!(
        text.contains("\n<script>alert(1)</script> noise changed no label: no label is wrong under it\n"),
        "{text}"
    );
    assert!(text.contains("\nmine is left out: it failed in episode 7 (ValueError: <no>)\n"), "{text}");
    assert!(text.contains("Accuracy in percent, <script>alert(1)</script> noise\n"), "{text}");
    assert!(report(&evaluation, Format::Markdown).contains("12.34 % of the labels are wrong.\n"));
    assert!(report(&evaluation, Format::Latex).contains("12.34 \\% of the labels are wrong\n"));
    let html = report(&evaluation, Format::Html);
    assert!(html.contains("12.34 % of the labels are wrong."));
    assert!(html.contains("(ValueError: &#60;no&#62;)"), "names are escaped");
    assert!(!html.contains("<script>alert"), "also in tables and charts");
    assert!(html.contains("share of wrong labels, &lt;script&gt;alert(1)&lt;/script&gt; noise"), "{html}");
    let csv = report(&evaluation, Format::Csv);
    assert!(
        csv.contains("\n<script>alert(1)</script>,0.25,5,5,15,10000,median,51,")
            && csv.contains(",false,0.1234\n"),
        "{csv}"
    );
    evaluation.settings.iter_mut().for_each(|setting| setting.methods.clear());
    for format in [Format::Table, Format::Markdown, Format::Latex, Format::Html, Format::Csv, Format::Json] {
        assert!(
            report(&evaluation, format).len() > 50,
            "an evaluation whose methods all failed is shown, too"
        );
    }
}

#[test]
fn the_csv_matches_its_snapshot() {
    insta::assert_snapshot!(report(&everything(), Format::Csv));
}

#[test]
fn the_markdown_matches_its_snapshot() {
    insta::assert_snapshot!(report(&everything(), Format::Markdown));
}

#[test]
fn the_latex_matches_its_snapshot() {
    insta::assert_snapshot!(report(&everything(), Format::Latex));
}

#[test]
fn tables_with_significance_compare_pairs_of_methods() {
    let (usual, all) = (
        report(&everything(), Format::Table),
        super::evaluation(&everything(), Format::Table, Tables::WithSignificance),
    );
    let more = all.strip_prefix(usual.as_str()).expect("the usual tables come first");
    insta::assert_snapshot!(more);
}

#[test]
fn accuracies_alone_are_the_first_tables_of_the_report() {
    let shown = accuracies(&everything());
    assert_eq!(shown.matches("Accuracy in percent, ").count(), 2, "{shown}");
    assert!(!shown.contains("gap") && !shown.contains("AUROC") && !shown.contains("by class"), "{shown}");
    assert!(report(&everything(), Format::Table).starts_with(&shown));
}

#[test]
fn json_preserves_awkward_names() {
    let shown: serde_json::Value = serde_json::from_str(&report(&awkward(), Format::Json)).unwrap();
    let entry = &shown["settings"][1]["methods"][0];
    assert_eq!(entry["method"], AWKWARD);
    assert_eq!(entry["per_class"][0]["class"], AWKWARD);
}

#[test]
fn csv_quotes_awkward_names() {
    let shown = report(&awkward(), Format::Csv);
    let quoted = format!(",\"{}\",", AWKWARD.replace('"', "\"\""));
    assert_eq!(shown.matches(&quoted).count(), 2, "{shown}");
}

/// The cells of a row of a Markdown table as they are rendered: split at unescaped bars, without the backslashes of
/// escapes.
fn markdown_cells(row: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut characters = row.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => cells.last_mut().unwrap().extend(characters.next()),
            '|' => cells.push(String::new()),
            // Unescaped, these would begin a tag, an entity or emphasis.
            '<' | '&' | '_' => panic!("{character} is not escaped in {row}"),
            _ => cells.last_mut().unwrap().push(character),
        }
    }
    cells.into_iter().map(|cell| cell.trim().to_string()).collect()
}

#[test]
fn markdown_keeps_awkward_names_within_their_cells() {
    let shown = report(&awkward(), Format::Markdown);
    let rows: Vec<Vec<String>> = shown
        .lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|---"))
        .map(markdown_cells)
        .collect();
    let named = rows.iter().flatten().filter(|cell| *cell == AWKWARD).count();
    assert_eq!(named, 4, "accuracy, detection, and twice in class by method (column and row): {shown}");
    assert!(rows.iter().all(|row| (4..=5).contains(&row.len())), "{shown}");
    let title = shown.lines().find(|line| line.contains("Points above")).unwrap();
    assert!(markdown_cells(title)[0].contains(&format!("above {AWKWARD} on")), "{title}");
}

#[test]
fn latex_escapes_awkward_names() {
    let shown = report(&awkward(), Format::Latex);
    let escaped =
        r#"\textless{}a\textgreater{}\&"b"\textbar{}c\textbackslash{}d\_e,f*g\textbackslash{}\textbar{}h"#;
    assert_eq!(
        shown.matches(escaped).count(),
        5,
        "accuracy, difference, detection, and twice in class by method (column and row): {shown}"
    );
}

#[test]
fn the_page_escapes_awkward_names() {
    let evaluation = awkward();
    let item = FigureItem {
        image: "data:,".into(),
        truth: Some(AWKWARD.into()),
        opinions: vec![(AWKWARD.into(), 1.0)],
    };
    let figure = SupportSetFigure {
        title: AWKWARD.into(),
        caption: AWKWARD.into(),
        classes: vec![FigureClass { name: AWKWARD.into(), items: vec![item] }],
    };
    let shown = Page::new(AWKWARD, &evaluation).introduce(AWKWARD).show(figure).render();
    assert!(!shown.contains("<a>") && !shown.contains("&\"") && !shown.contains("\"b\""), "{shown}");
    assert!(shown.contains("|c\\d_e,f*g"));
}

#[test]
fn the_page_contains_every_part_of_an_evaluation() {
    let shown = report(&everything(), Format::Html);
    for part in [
        "stopped early",
        "Accuracy in percent, outlier noise",
        "Share of the gap",
        "Accuracy by class, symmetric noise of 40 %",
        "Confusion matrices",
        "Significance of the differences",
        "+10.70",
        "(-0.02)",
        "--share:0.667",
    ] {
        assert!(shown.contains(part), "'{part}' is missing");
    }
    assert!(!shown.contains("NaN"));
}

/// The settings of the paper's tables: a noise kind and its levels in percent.
const PAPER: [(NoiseKind, &[f64]); 8] = [
    (NoiseKind::Symmetric, &[0.0, 20.0, 40.0, 60.0]),
    (NoiseKind::Paired, &[40.0]),
    (NoiseKind::Outlier, &[0.0, 20.0, 40.0, 60.0]),
    (NoiseKind::Symmetric, &[0.0, 33.3]),
    (NoiseKind::Outlier, &[0.0, 33.3]),
    (NoiseKind::Symmetric, &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]),
    (NoiseKind::Paired, &[20.0, 30.0, 40.0]),
    (NoiseKind::Outlier, &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]),
];

#[test]
fn tables_of_the_papers_settings_fit_80_columns() {
    let registry = Registry::default();
    for (kind, levels) in PAPER {
        let methods = || {
            let entry = |name| {
                let detection = Some(detection(0.8531, None));
                let difference = Some(Difference { mean: -10.25, ci95: Some(0.12) });
                MethodResult { gap_closed: Some(-1.2345), detection, difference, ..method(name, 67.4) }
            };
            registry.infos().iter().map(|info| entry(info.name)).collect()
        };
        let evaluation =
            evaluation_of(levels.iter().map(|level| setting(kind, level / 100.0, methods())).collect());
        let shown = report(&evaluation, Format::Table);
        let widest = shown.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 80, "{kind} noise of {levels:?}:\n{widest}");
        let heads: Vec<&str> = shown
            .lines()
            .filter(|line| line.starts_with("  method"))
            .flat_map(|line| line.split("  ").map(str::trim))
            .collect();
        for level in levels.iter().map(|level| format!("{level} %")) {
            let columns = heads.iter().filter(|head| **head == level).count();
            // Accuracy, difference, gap and detection.
            assert_eq!(columns, 4, "{level} heads a column of every table:\n{shown}");
        }
    }
}

#[test]
fn a_chart_has_one_series_per_method_and_finite_coordinates() {
    let evaluation = everything();
    let html = chart::accuracy_against_noise(&evaluation, NoiseKind::Symmetric).unwrap();
    assert!(!html.contains("<details>"), "four lines need no toggle: {html}");
    for size in ["wide", "narrow"] {
        let svg = chart_of_size(&html, size);
        assert_eq!(svg.matches("<g class=\"series").count(), 4);
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert_eq!(svg.matches("class=\"point\"").count(), 4 * 2, "one point per level");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    let outlier = chart::accuracy_against_noise(&evaluation, NoiseKind::Outlier).unwrap();
    let points = chart_of_size(&outlier, "wide").matches("class=\"point\"").count();
    assert_eq!(points, 4 * 2, "the clean level is in every chart");
}

/// The last chart of a size, which is the one that is not behind a toggle.
fn chart_of_size<'a>(html: &'a str, size: &str) -> &'a str {
    let (_, chart) = html.rsplit_once(&format!("<svg class=\"chart {size}\"")).expect("the size is there");
    chart.split("</svg>").next().unwrap_or_default()
}

#[test]
fn a_chart_of_many_methods_shows_the_references_and_the_best_and_the_others_behind_a_toggle() {
    let names = ["oracle", "protonet", "a", "b", "c", "d", "e", "a method with a very long name indeed"];
    let accuracies = [90.0, 20.0, 50.0, 51.0, 30.0, 52.0, 53.0, 54.0];
    let methods = || names.iter().zip(accuracies).map(|(name, accuracy)| method(name, accuracy)).collect();
    let evaluation =
        evaluation_of([0.0, 0.4].map(|level| setting(NoiseKind::Paired, level, methods())).into());
    let html = chart::accuracy_against_noise(&evaluation, NoiseKind::Paired).unwrap();
    assert!(html.contains("<summary>Show all 8 lines instead of 6</summary>"), "{html}");
    assert_eq!(html.matches("<svg ").count(), 4, "six and all lines, each in two sizes");
    assert_eq!(html.matches("<g class=\"series").count(), 2 * (8 + 6));
    for size in ["wide", "narrow"] {
        let few = chart_of_size(&html, size);
        let shown = |name: &&str| few.contains(&format!("<title>{name}</title>"));
        let shown: Vec<&str> = names.into_iter().filter(shown).collect();
        assert_eq!(shown, ["oracle", "protonet", "b", "d", "e", "a method with a very long name indeed"]);
        let colours: std::collections::BTreeSet<&str> =
            few.split("class=\"series ").skip(1).map(|rest| &rest[..2]).collect();
        assert_eq!(colours.len(), 6, "every line has its own colour: {colours:?}");
    }
    assert!(chart_of_size(&html, "narrow").contains("…</text>"), "a long name is shortened: {html}");
}

#[test]
fn names_at_the_ends_of_lines_do_not_overlap_however_many_there_are() {
    let methods = || (0..40).map(|m| method(&format!("method {m}"), 50.0 + 0.01 * f64::from(m))).collect();
    let evaluation =
        evaluation_of([0.0, 0.4].map(|level| setting(NoiseKind::Paired, level, methods())).into());
    let html = chart::accuracy_against_noise(&evaluation, NoiseKind::Paired).unwrap();
    for svg in html.split("<svg ").skip(1) {
        let labels = svg.split("class=\"lead\"").skip(1);
        let height = |rest: &str| rest.split("y=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        let mut heights: Vec<f64> = labels.filter_map(height).collect();
        heights.sort_by(f64::total_cmp);
        assert!(heights.len() == 6 || heights.len() == 40, "{}", heights.len());
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > 13.0), "{heights:?}");
        assert!(heights[0] > 0.0, "{heights:?}");
    }
}

#[test]
fn charts_of_equal_or_perfect_accuracies_have_finite_coordinates() {
    for accuracy in [0.0, 37.0, 100.0] {
        let levels = [0.0, 0.2].map(|l| setting(NoiseKind::Paired, l, vec![method("protonet", accuracy)]));
        let svg = chart::accuracy_against_noise(&evaluation_of(levels.into()), NoiseKind::Paired).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn one_level_or_no_accuracy_makes_no_chart() {
    let one_level = evaluation_of(vec![setting(NoiseKind::Paired, 0.4, vec![method("protonet", 50.0)])]);
    assert!(chart::accuracy_against_noise(&one_level, NoiseKind::Paired).is_none());
    let without_accuracy = || vec![MethodResult { accuracy: None, ci95: None, ..method("cosine", 0.0) }];
    let no_points =
        evaluation_of([0.0, 0.4].map(|l| setting(NoiseKind::Paired, l, without_accuracy())).into());
    assert!(chart::accuracy_against_noise(&no_points, NoiseKind::Paired).is_none());
}

#[test]
fn transductive_methods_have_a_mark_and_a_footnote() {
    let methods = || {
        let tim = MethodResult { transductive: true, ..method("tim", 70.0) };
        let difference = Some(Difference { mean: 3.0, ci95: Some(0.1) });
        vec![method("protonet", 67.0), MethodResult { difference, ..tim }]
    };
    let levels = [0.0, 0.4].map(|level| setting(NoiseKind::Symmetric, level, methods()));
    let marked = evaluation_of(levels.into());
    let (mark, note) = ("tim†", "† transductive: classifies all queries");
    for format in [Format::Table, Format::Markdown, Format::Html] {
        let shown = report(&marked, format);
        assert!(shown.contains(mark) && shown.contains(note), "{shown}");
        assert!(!shown.contains("protonet†"), "{shown}");
    }
    let latex = report(&marked, Format::Latex);
    assert!(latex.contains("tim$\\dagger$ &") && latex.contains("$\\dagger$ transductive:"), "{latex}");
    let csv = report(&marked, Format::Csv);
    assert!(csv.lines().filter(|line| line.contains(",true,")).all(|line| line.contains(",tim,")), "{csv}");
    assert_eq!(csv.lines().filter(|line| line.contains(",false,")).count(), 2, "{csv}");
    let json: serde_json::Value = serde_json::from_str(&report(&marked, Format::Json)).unwrap();
    assert_eq!(json["settings"][0]["methods"][1]["transductive"], true);
    assert_eq!(json["settings"][0]["methods"][0].get("transductive"), None);
    let plain = evaluation_of(vec![setting(NoiseKind::Symmetric, 0.4, vec![method("protonet", 67.0)])]);
    assert!(!report(&plain, Format::Table).contains('†'));
}

#[test]
fn a_transductive_baseline_is_not_compared_with_itself() {
    let methods = vec![method("protonet", 67.0), MethodResult { transductive: true, ..method("tim", 70.0) }];
    let difference = Some(Difference { mean: -3.0, ci95: Some(0.1) });
    let methods = methods.into_iter().map(|method| match method.transductive {
        true => method,
        false => MethodResult { difference, ..method },
    });
    let mut evaluation = evaluation_of(vec![setting(NoiseKind::Symmetric, 0.4, methods.collect())]);
    evaluation.baseline = "tim".into();
    let shown = report(&evaluation, Format::Table);
    let compared = shown.split("Points above tim").nth(1).unwrap();
    assert!(compared.contains("protonet") && !compared.contains("tim†"), "{shown}");
}

#[test]
fn a_line_break_in_a_name_does_not_split_a_row() {
    let mut evaluation = awkward();
    evaluation.settings[1].methods[0].per_class.as_mut().unwrap()[0].class = "two\nlines".into();
    for (format, shown) in
        [(Format::Markdown, "two\\\\nlines"), (Format::Latex, "two\\textbackslash{}nlines")]
    {
        let text = report(&evaluation, format);
        assert!(text.contains(shown) && !text.contains("two\nlines"), "{text}");
    }
}

#[test]
fn an_inspection_uses_the_singular_for_one_row() {
    let labels = ["a", "b", "c"].map(String::from).to_vec();
    let data = crate::Embeddings::from_rows(vec![1.0, 1.0, 0.0], 1, labels).unwrap();
    let text = super::inspection_text(&crate::embeddings::inspect(&data), None);
    for part in [
        "3 rows of 1 (f32)",
        "3, each of 1 row\n",
        "; 1 row is all zero",
        "1 row repeats an earlier row; 1 group of duplicates spans several classes",
    ] {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}
