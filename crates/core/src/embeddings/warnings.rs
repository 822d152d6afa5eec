//! Warnings about embeddings: [`warnings`] lists the problems that an [`Inspection`] shows, one function per problem.

use super::inspection::{Inspection, QUERIES};
use crate::visible::counted;

/// The number of classes (ways) of an episode, a small classification problem drawn from the data, in most papers.
const WAYS: usize = 5;
/// The ratio of the sizes of the largest and the smallest class at or above which there is a warning.
const IMBALANCE: usize = 20;

/// One sentence for each problem that was found, the most serious first.
pub(super) fn warnings(inspection: &Inspection) -> Vec<String> {
    let checks = [
        non_finite_values,
        duplicates_across_classes,
        duplicate_rows,
        zero_rows,
        constant_dimensions,
        empty_classes,
        classes_of_one_row,
        imbalance,
        few_classes,
        few_shots,
    ];
    checks.iter().filter_map(|check| check(inspection)).collect()
}

fn non_finite_values(inspection: &Inspection) -> Option<String> {
    let first = inspection.non_finite.first.as_ref()?;
    let values = counted(inspection.non_finite.count, "value is", "values are");
    let location = format!("row {}, column {} ({})", first.row, first.column, first.value);
    Some(format!("{values} not finite, the first in {location}; such a file is refused"))
}

fn duplicates_across_classes(inspection: &Inspection) -> Option<String> {
    let across = inspection.duplicates.across_classes;
    let sets = counted(across, "set of identical rows crosses", "sets of identical rows cross");
    (across > 0).then(|| format!("{sets} classes: at least one label in each is wrong"))
}

fn duplicate_rows(inspection: &Inspection) -> Option<String> {
    let rows = inspection.duplicates.rows;
    (rows > 0).then(|| format!("{} an earlier row exactly", counted(rows, "row repeats", "rows repeat")))
}

fn zero_rows(inspection: &Inspection) -> Option<String> {
    let zero = inspection.norms.as_ref()?.zero;
    let rows = counted(zero, "row is", "rows are");
    (zero > 0).then(|| format!("{rows} all zero: methods that compare directions cannot classify them"))
}

fn constant_dimensions(inspection: &Inspection) -> Option<String> {
    let constant = inspection.constant_dimensions;
    let dimensions = counted(constant, "dimension has", "dimensions have");
    (constant > 0 && inspection.rows > 1).then(|| format!("{dimensions} the same value in every row"))
}

fn empty_classes(inspection: &Inspection) -> Option<String> {
    classes_of_size(inspection, 0)
        .map(|(classes, first)| format!("{classes} no rows, the first is '{first}'"))
}

fn classes_of_one_row(inspection: &Inspection) -> Option<String> {
    classes_of_size(inspection, 1)
        .map(|(classes, first)| format!("{classes} only one row, the first is '{first}'"))
}

/// The number of classes with `rows` rows, such as "2 classes have", and the name of the first.
fn classes_of_size(inspection: &Inspection, rows: usize) -> Option<(String, &str)> {
    let mut of_size = inspection.classes.iter().filter(|class| class.count == rows);
    let first = of_size.next()?;
    Some((counted(1 + of_size.count(), "class has", "classes have"), &first.name))
}

fn imbalance(inspection: &Inspection) -> Option<String> {
    let (smallest, largest) = (inspection.smallest_class.as_ref()?, inspection.largest_class.as_ref()?);
    let uneven = smallest.count > 0 && largest.count >= IMBALANCE * smallest.count;
    let sizes =
        || format!("'{}' has {} rows, '{}' {}", largest.name, largest.count, smallest.name, smallest.count);
    uneven.then(|| format!("classes are very uneven: {}", sizes()))
}

fn few_classes(inspection: &Inspection) -> Option<String> {
    let classes = inspection.classes.len();
    let too_few = counted(classes, "class is", "classes are");
    (classes < WAYS).then(|| format!("{too_few} too few for {WAYS}-way episodes"))
}

/// A warning if episodes of 5 shots (labelled items per class), the usual number, are not possible.
fn few_shots(inspection: &Inspection) -> Option<String> {
    let smallest = inspection.smallest_class.as_ref()?;
    let limit = match inspection.fewest_images {
        Some(images) => format!(
            "a class has {}, of which the rows are augmented copies",
            counted(images, "image", "images")
        ),
        None => format!("'{}' has {}", smallest.name, counted(smallest.count, "row", "rows")),
    };
    let episodes = format!("{WAYS}-way episodes with {QUERIES} queries");
    match inspection.largest_shots {
        // One shot needs one row for the shot, one for the noise pool (see `largest_shots`), and the queries.
        None => Some(format!("no {episodes} fit: {limit}, and 1 shot needs {}", QUERIES + 2)),
        Some(shots @ ..5) => Some(format!("the largest number of shots for {episodes} is {shots}: {limit}")),
        Some(_) => None,
    }
}
