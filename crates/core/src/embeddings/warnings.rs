//! What deserves attention in a file, in plain English: one function a concern.

use super::inspect::{IMBALANCE, Inspection, QUERIES, WAYS};

/// All that applies, the gravest first.
pub(super) fn warnings(found: &Inspection) -> Vec<String> {
    let concerns = [
        not_finite,
        contradictions,
        repetitions,
        zero_rows,
        constant_dimensions,
        empty_classes,
        single_rows,
        imbalance,
        few_classes,
        few_shots,
    ];
    concerns.iter().filter_map(|concern| concern(found)).collect()
}

/// The number with its noun and verb: `1 row is`, `2 rows are`.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn not_finite(found: &Inspection) -> Option<String> {
    let first = found.non_finite.first.as_ref()?;
    let values = counted(found.non_finite.count, "value is", "values are");
    let place = format!("row {}, column {} ({})", first.row, first.column, first.value);
    Some(format!("{values} not finite, the first in {place}; such a file is refused"))
}

fn contradictions(found: &Inspection) -> Option<String> {
    let across = found.duplicates.across_classes;
    let sets = counted(across, "set of identical rows crosses", "sets of identical rows cross");
    (across > 0).then(|| format!("{sets} classes: at least one label in each is wrong"))
}

fn repetitions(found: &Inspection) -> Option<String> {
    let rows = found.duplicates.rows;
    (rows > 0).then(|| format!("{} an earlier row exactly", counted(rows, "row repeats", "rows repeat")))
}

fn zero_rows(found: &Inspection) -> Option<String> {
    let zero = found.norms.as_ref()?.zero;
    let rows = counted(zero, "row is", "rows are");
    (zero > 0).then(|| format!("{rows} all zero: methods that compare directions cannot classify them"))
}

fn constant_dimensions(found: &Inspection) -> Option<String> {
    let constant = found.constant_dimensions;
    let dimensions = counted(constant, "dimension has", "dimensions have");
    (constant > 0 && found.rows > 1).then(|| format!("{dimensions} the same value in every row"))
}

fn empty_classes(found: &Inspection) -> Option<String> {
    classes_of(found, 0).map(|(classes, first)| format!("{classes} no rows, the first is '{first}'"))
}

fn single_rows(found: &Inspection) -> Option<String> {
    classes_of(found, 1).map(|(classes, first)| format!("{classes} only one row, the first is '{first}'"))
}

/// How many classes have that many rows, in words, and the first of them.
fn classes_of(found: &Inspection, rows: usize) -> Option<(String, &str)> {
    let mut of_size = found.classes.iter().filter(|class| class.count == rows);
    let first = of_size.next()?;
    Some((counted(1 + of_size.count(), "class has", "classes have"), &first.name))
}

fn imbalance(found: &Inspection) -> Option<String> {
    let (smallest, largest) = (found.smallest_class.as_ref()?, found.largest_class.as_ref()?);
    let uneven = smallest.count > 0 && largest.count >= IMBALANCE * smallest.count;
    let sizes =
        || format!("'{}' has {} rows, '{}' {}", largest.name, largest.count, smallest.name, smallest.count);
    uneven.then(|| format!("classes are very uneven: {}", sizes()))
}

fn few_classes(found: &Inspection) -> Option<String> {
    let classes = found.classes.len();
    let too_few = counted(classes, "class is", "classes are");
    (classes < WAYS).then(|| format!("{too_few} too few for {WAYS}-way episodes"))
}

fn few_shots(found: &Inspection) -> Option<String> {
    let smallest = found.smallest_class.as_ref()?;
    let limit = format!("'{}' has {}", smallest.name, counted(smallest.count, "row", "rows"));
    let episodes = format!("{WAYS}-way episodes with {QUERIES} queries");
    match found.largest_shots {
        None => Some(format!("no {episodes} fit: {limit}, and 1 shot needs {}", QUERIES + 2)),
        Some(shots @ ..5) => Some(format!("the largest number of shots for {episodes} is {shots}: {limit}")),
        Some(_) => None,
    }
}
