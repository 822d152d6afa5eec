//! Class-dependent label noise from a confusion matrix ([`ConfusionNoise`]): a custom noise type ([`LabelNoise`]) that
//! an evaluation adds to its built-in ones.

use std::collections::HashMap;
use std::path::Path;

use super::{CleanSupport, LabelNoise, NoisyLabels};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// The maximum number of times that the labels of a class are drawn until at least one item keeps its label. If all
/// draws fail, so does the episode, with an error.
const ATTEMPTS: usize = 10_000;

/// Class-dependent label noise: entry `[i][j]` of a matrix is the probability that an item of class i gets the label j.
///
/// In an episode, an item of class i keeps its label with the probability `[i][i]`. Otherwise it gets the label of
/// another class j of the episode, with a probability proportional to `[i][j]`; if all of these are 0, it keeps its
/// label. The labels of a class are drawn again if none of its items would keep the right one.
///
/// ```
/// use trueshot::noise::ConfusionNoise;
/// use trueshot::{Embeddings, Evaluation};
///
/// let labels = (0..60).map(|row| format!("class {}", row / 20)).collect();
/// let data = Embeddings::from_rows((0..60).map(|row| row as f32).collect(), 1, labels)?;
/// // Counts are allowed as well. Only items of the first class get a wrong label, that of the second class.
/// let matrix = vec![vec![3.0, 1.0, 0.0], vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 1.0]];
/// let noise = ConfusionNoise::new("first to second", matrix)?;
/// let evaluation = Evaluation::of(&data).label_noise(noise).methods("protonet")?;
/// let evaluation = evaluation.ways(3).shots(8).queries(4).episodes(200).run()?;
/// assert!((evaluation.settings[0].wrong_share - 0.25 / 3.0).abs() < 0.01);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct ConfusionNoise {
    name: String,
    /// Probabilities `[true class][given class]`, in the order of the classes of the data; every row sums to 1.
    probabilities: Vec<Vec<f64>>,
}

impl ConfusionNoise {
    /// Noise from a square matrix `[true class][given class]` of probabilities or counts, in the order of
    /// [`Embeddings::classes`]. Every row is divided by its sum.
    ///
    /// # Errors
    /// [`Error::BadNoise`] if the matrix is not square, has a negative number or one that is not finite, or if the
    /// diagonal of a row is 0, because then no item of that class could keep its label.
    pub fn new(name: impl Into<String>, matrix: Vec<Vec<f64>>) -> Result<Self> {
        let name = name.into();
        let bad = |problem: String| Error::BadNoise { text: name.clone(), problem };
        let size = matrix.len();
        for (class, row) in matrix.iter().enumerate() {
            if row.len() != size {
                return Err(bad(format!(
                    "the confusion matrix must be square; it has {size} rows, and row {class} has {} numbers",
                    row.len()
                )));
            }
            if let Some((column, value)) =
                row.iter().enumerate().find(|(_, v)| !(v.is_finite() && **v >= 0.0))
            {
                return Err(bad(format!(
                    "row {class}, column {column} of the confusion matrix is {value}; allowed: numbers from 0 on"
                )));
            }
            if row[class] == 0.0 {
                return Err(bad(format!(
                    "row {class} of the confusion matrix has 0 on the diagonal; every class must keep some right labels"
                )));
            }
        }
        let normalise = |row: Vec<f64>| {
            let sum: f64 = row.iter().sum();
            row.into_iter().map(|value| value / sum).collect()
        };
        let probabilities = matrix.into_iter().map(normalise).collect();
        Ok(ConfusionNoise { name, probabilities })
    }

    /// Reads a matrix from a CSV file; `name` is the name of the noise in results, `classes` are those of the data. The
    /// first line of the file has a cell that is ignored and the names of the given classes, every other line the name
    /// of a true class and its numbers. Classes that the data does not have are ignored.
    ///
    /// # Errors
    /// If the file cannot be read, a class of the data is missing in it, or the matrix is not allowed (see
    /// [`ConfusionNoise::new`]).
    pub fn open(path: &Path, name: &str, classes: &[String]) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let matrix = parse_csv(&text, classes)
            .map_err(|problem| Error::BadNoise { text: format!("{name}={}", path.display()), problem })?;
        ConfusionNoise::new(name, matrix)
    }
}

/// The rows and columns of a CSV matrix that belong to `classes`, in the order of `classes`; `Err` is the problem with
/// the text.
fn parse_csv(text: &str, classes: &[String]) -> Result<Vec<Vec<f64>>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or("the file is empty")?;
    // The index of every given class among the numbers of a row.
    let columns = positions(cells(header).into_iter().skip(1), "column")?;
    // The numbers of every true class, as text.
    let mut rows: HashMap<String, Vec<String>> = HashMap::new();
    for (number, line) in lines {
        let mut cells = cells(line);
        if cells.len() != columns.len() + 1 {
            return Err(format!(
                "line {} has {} cells; {} were expected: the name of a class and one number per class of the first line",
                number + 1,
                cells.len(),
                columns.len() + 1
            ));
        }
        let name = cells.remove(0);
        if rows.insert(name.clone(), cells).is_some() {
            return Err(format!("class '{name}' has two rows"));
        }
    }
    let missing =
        |what: &str, class: &str| format!("the matrix has no {what} for class '{class}' of the data");
    let row = |class: &String| {
        let cells = rows.get(class).ok_or_else(|| missing("row", class))?;
        let number = |given: &String| {
            let &column = columns.get(given).ok_or_else(|| missing("column", given))?;
            let cell = &cells[column];
            cell.parse::<f64>()
                .map_err(|_| format!("row '{class}', column '{given}' is '{cell}', not a number"))
        };
        classes.iter().map(number).collect()
    };
    classes.iter().map(row).collect()
}

/// The position of every name; an error if a name occurs twice. `what` is the word for a position in the message.
fn positions(names: impl Iterator<Item = String>, what: &str) -> Result<HashMap<String, usize>, String> {
    let mut positions = HashMap::new();
    for (position, name) in names.enumerate() {
        if positions.insert(name.clone(), position).is_some() {
            return Err(format!("class '{name}' has two {what}s"));
        }
    }
    Ok(positions)
}

/// The cells of a line of CSV. Cells in quotes may contain commas, and quotes that are doubled.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(std::mem::take(&mut cell).trim().to_string()),
            _ => cell.push(character),
        }
    }
    cells.push(cell.trim().to_string());
    cells
}

impl LabelNoise for ConfusionNoise {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self, data: &Embeddings) -> Result<()> {
        let (size, classes) = (self.probabilities.len(), data.classes().len());
        match size == classes {
            true => Ok(()),
            false => Err(Error::BadNoise {
                text: self.name.clone(),
                problem: format!("the confusion matrix has {size} classes, the data has {classes}"),
            }),
        }
    }

    /// The mean over all classes of the probability that an item gets a wrong label.
    fn expected_share(&self) -> f64 {
        let wrong = self.probabilities.iter().enumerate().map(|(class, row)| 1.0 - row[class]).sum::<f64>();
        wrong / self.probabilities.len().max(1) as f64
    }

    fn relabel(&self, support: &CleanSupport<'_>, rng: &mut Rng) -> Result<NoisyLabels> {
        // The classes of the episode, as indices into the matrix. A position is an index into the classes of the
        // episode.
        let classes: Vec<usize> = support.episode.classes.iter().map(|draw| draw.class as usize).collect();
        let mut given = Vec::with_capacity(support.labels.len());
        for (position, draw) in support.episode.classes.iter().enumerate() {
            let row = &self.probabilities[classes[position]];
            let others: Vec<f64> = classes
                .iter()
                .map(|&class| if class == classes[position] { 0.0 } else { row[class] })
                .collect();
            let keep = row[classes[position]];
            let labels = (0..ATTEMPTS).find_map(|_| {
                let label = |_: &u32| draw_label(position, keep, &others, rng);
                let labels: Vec<u32> = draw.support.iter().map(label).collect();
                labels.contains(&(position as u32)).then_some(labels)
            });
            given.extend(labels.ok_or_else(|| Error::NoiseFailed {
                noise: self.name.clone(),
                episode: support.episode.index,
                problem: format!(
                    "no item of class '{}' keeps its label; make the diagonal of its row larger",
                    support.data.embeddings.classes()[classes[position]]
                ),
            })?);
        }
        Ok(given.into())
    }
}

/// The label of one item of the class at `position`: kept with probability `keep`, otherwise another position, drawn
/// with the weights `others`; kept as well if all weights are 0.
fn draw_label(position: usize, keep: f64, others: &[f64], rng: &mut Rng) -> u32 {
    // Both numbers are always drawn, so that the labels of later items do not depend on whether this one is kept.
    let (is_kept, mut remaining) = (rng.fraction() < keep, rng.fraction() * others.iter().sum::<f64>());
    if is_kept {
        return position as u32;
    }
    // `remaining` is uniform below the sum of the weights. The first position at which the weights so far exceed it is
    // chosen, each with a probability proportional to its weight.
    let chosen = others.iter().position(|&weight| {
        let is_chosen = remaining < weight;
        remaining -= weight;
        is_chosen
    });
    chosen.unwrap_or(position) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::{EpisodeSpec, Episodes, Sampler};
    use crate::rng::IndexSampler;

    fn data() -> Embeddings {
        let labels = (0..160).map(|row| format!("class {}", row / 40)).collect();
        Embeddings::from_rows((0..160).map(|row| row as f32).collect(), 1, labels).unwrap()
    }

    fn problem(matrix: Vec<Vec<f64>>) -> String {
        ConfusionNoise::new("mine", matrix).err().unwrap().to_string()
    }

    #[test]
    fn labels_change_as_often_as_the_matrix_says() {
        let data = data();
        // Class 0 becomes class 1 or 2, twice as often 1; nothing else changes.
        let matrix = vec![
            vec![7.0, 2.0, 1.0, 0.0],
            vec![0.0, 1.0, 0.0, 0.0],
            vec![0.0, 0.0, 1.0, 0.0],
            vec![0.0, 0.0, 0.0, 1.0],
        ];
        let spec = EpisodeSpec { ways: 4, shots: 10.into(), queries: 5, seed: 1 };
        let sampler = Sampler::new(&data, None, spec, vec![]).unwrap();
        let sampler = sampler.with_noise(Box::new(ConfusionNoise::new("mine", matrix).unwrap())).unwrap();
        let mut counts = [[0usize; 4]; 4];
        for index in 0..2000 {
            let drawn = sampler.draw(index, &mut IndexSampler::default()).unwrap();
            let classes = &drawn.episode.classes;
            for item in &drawn.supports[0] {
                let truth = classes[item.truth.unwrap() as usize].class as usize;
                counts[truth][classes[item.given as usize].class as usize] += 1;
                assert_eq!(data.labels()[item.row as usize] as usize, truth);
            }
        }
        let share = |given: usize| counts[0][given] as f64 / 20_000.0;
        assert!((share(1) - 0.2).abs() < 0.01 && (share(2) - 0.1).abs() < 0.01, "{counts:?}");
        assert_eq!((counts[0][3], counts[1][1], counts[2][2]), (0, 20_000, 20_000));
    }

    #[test]
    fn a_class_keeps_a_right_label_even_if_that_is_unlikely() {
        let data = data();
        let row = |class: usize| (0..4).map(|other| if other == class { 0.05 } else { 0.3 }).collect();
        let spec = EpisodeSpec { ways: 3, shots: 2.into(), queries: 1, seed: 0 };
        let noise = ConfusionNoise::new("mine", (0..4).map(row).collect()).unwrap();
        assert!((noise.expected_share() - 0.9 / 0.95).abs() < 1e-9);
        let sampler = Sampler::new(&data, None, spec, vec![]).unwrap().with_noise(Box::new(noise)).unwrap();
        for index in 0..50 {
            let drawn = sampler.draw(index, &mut IndexSampler::default()).unwrap();
            for class in 0..3 {
                assert!(drawn.supports[0].iter().any(|item| item.given == class && !item.is_wrong()));
            }
        }
    }

    #[test]
    fn matrices_that_make_no_sense_are_refused() {
        assert!(
            problem(vec![vec![1.0, 0.0]]).contains("must be square; it has 1 rows, and row 0 has 2 numbers")
        );
        assert!(
            problem(vec![vec![1.0, -1.0], vec![0.0, 1.0]])
                .contains("row 0, column 1 of the confusion matrix is -1")
        );
        assert!(problem(vec![vec![1.0, 0.0], vec![f64::NAN, 1.0]]).contains("is NaN"));
        assert!(
            problem(vec![vec![0.0, 1.0], vec![0.0, 1.0]])
                .contains("row 0 of the confusion matrix has 0 on the diagonal")
        );
        let data = data();
        let spec = EpisodeSpec { ways: 3, shots: 2.into(), queries: 1, seed: 0 };
        let noise = ConfusionNoise::new("mine", vec![vec![1.0]]).unwrap();
        let refused = Sampler::new(&data, None, spec, vec![]).unwrap().with_noise(Box::new(noise));
        let message = refused.err().unwrap().to_string();
        assert_eq!(message, "noise 'mine': the confusion matrix has 1 classes, the data has 4");
    }

    #[test]
    fn a_csv_file_names_the_classes_in_any_order_and_may_have_more() {
        let classes = ["a".to_string(), "b, c".to_string()];
        let text = "true,\"b, c\",other,a\n\"b, c\",4,9,1\nother,1,1,1\n\na, 2 ,9,6\n";
        assert_eq!(parse_csv(text, &classes).unwrap(), [vec![6.0, 2.0], vec![1.0, 4.0]]);
        let problem = |text: &str| parse_csv(text, &classes).unwrap_err();
        assert_eq!(problem(""), "the file is empty");
        assert_eq!(problem(",a\na,1\n"), "the matrix has no column for class 'b, c' of the data");
        assert_eq!(problem(",a,\"b, c\"\na,1,2\n"), "the matrix has no row for class 'b, c' of the data");
        assert!(problem(",a,\"b, c\"\na,1\n").starts_with("line 2 has 2 cells; 3 were expected"));
        assert_eq!(problem(",a,a\n"), "class 'a' has two columns");
        assert_eq!(problem(",a,\"b, c\"\na,1,2\na,1,2\n"), "class 'a' has two rows");
        assert_eq!(problem(",a,\"b, c\"\na,x,2\n"), "row 'a', column 'a' is 'x', not a number");
    }
}
