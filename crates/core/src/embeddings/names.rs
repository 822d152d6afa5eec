//! Class names of rows: [`Names`] collects one name per row while a file is read and numbers them.
//!
//! A file can repeat one long name a million times in a few bytes (by a dictionary or views). Only distinct names are
//! kept, so memory use stays within the size of the file.

use std::collections::HashMap;

use super::Labels;

/// The maximum length of a class name. A longer one comes from a damaged file or from a column that is not labels.
pub(crate) const MAX_NAME_BYTES: usize = 1 << 16;

/// The class names of the rows read so far.
#[derive(Default)]
pub(crate) struct Names {
    /// The distinct names with their numbers, in the order of their first occurrence.
    numbers: HashMap<String, i64>,
    /// The number of the name of each row.
    labels: Vec<i64>,
}

impl Names {
    /// Adds the name of the next row; `Err` if it is too long.
    pub fn push(&mut self, name: &str) -> Result<(), String> {
        if name.len() > MAX_NAME_BYTES {
            let row = self.labels.len();
            return Err(format!("the label in row {row} is a name of {} bytes", name.len()));
        }
        let number = match self.numbers.get(name) {
            Some(&number) => number,
            None => {
                let number = self.numbers.len() as i64;
                self.numbers.insert(name.to_owned(), number);
                number
            }
        };
        self.labels.push(number);
        Ok(())
    }

    /// Converts the names to labels. The classes are the distinct names, sorted.
    pub fn into_labels(self) -> Labels {
        let mut sorted: Vec<(String, i64)> = self.numbers.into_iter().collect();
        sorted.sort_unstable();
        // The class (the rank of the name) by the number of the name.
        let mut renumbered = vec![0; sorted.len()];
        for (rank, (_, number)) in sorted.iter().enumerate() {
            renumbered[*number as usize] = rank as i64;
        }
        Labels::Indexed {
            labels: self.labels.into_iter().map(|number| renumbered[number as usize]).collect(),
            classes: sorted.into_iter().map(|(name, _)| name).collect(),
        }
    }

    /// Converts the names to labels with the given classes; `Err` if a name is not among them.
    pub fn into_labels_with(self, classes: Vec<String>) -> Result<Labels, String> {
        let listed: HashMap<&str, i64> = classes.iter().map(String::as_str).zip(0..).collect();
        let mut renumbered = vec![0; self.numbers.len()];
        for (name, number) in &self.numbers {
            let in_list = listed.get(name.as_str());
            renumbered[*number as usize] =
                *in_list.ok_or_else(|| format!("label '{name}' is not in the list of classes"))?;
        }
        let labels = self.labels.into_iter().map(|number| renumbered[number as usize]).collect();
        Ok(Labels::Indexed { labels, classes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rows: &[&str]) -> Names {
        let mut names = Names::default();
        rows.iter().for_each(|name| names.push(name).unwrap());
        names
    }

    #[test]
    fn classes_are_the_distinct_names_sorted() {
        let Labels::Indexed { labels, classes } = names(&["owl", "ant", "owl"]).into_labels() else {
            panic!()
        };
        assert_eq!((labels, classes), (vec![1, 0, 1], vec!["ant".to_owned(), "owl".to_owned()]));
    }

    #[test]
    fn given_classes_keep_their_order() {
        let list = vec!["owl".to_owned(), "ant".to_owned()];
        let Ok(Labels::Indexed { labels, .. }) = names(&["ant", "owl"]).into_labels_with(list.clone()) else {
            panic!()
        };
        assert_eq!(labels, [1, 0]);
        assert!(names(&["bee"]).into_labels_with(list).is_err());
    }
}
