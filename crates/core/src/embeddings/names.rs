//! Class names as they come, one a row, turned into numbers on the way in.
//!
//! A file can repeat one long name a million times in a few bytes (a dictionary, a view). Only distinct
//! names are kept, so what is stored stays within what the file really holds.

use std::collections::HashMap;

use super::Labels;

/// No class is called by a whole book; a name this long is a lie or another column.
pub(crate) const LONGEST_NAME: usize = 1 << 16;

/// Labels seen so far.
#[derive(Default)]
pub(crate) struct Names {
    places: HashMap<String, i64>,
    labels: Vec<i64>,
}

impl Names {
    /// Takes the next row's name; `Err` says why it cannot be one.
    pub fn push(&mut self, name: &str) -> Result<(), String> {
        if name.len() > LONGEST_NAME {
            let row = self.labels.len();
            return Err(format!("the label in row {row} is a name of {} bytes", name.len()));
        }
        let place = match self.places.get(name) {
            Some(&place) => place,
            None => {
                let place = self.places.len() as i64;
                self.places.insert(name.to_owned(), place);
                place
            }
        };
        self.labels.push(place);
        Ok(())
    }

    /// The classes are the names that occurred, in order.
    pub fn into_labels(self) -> Labels {
        let mut sorted: Vec<(String, i64)> = self.places.into_iter().collect();
        sorted.sort_unstable();
        let mut renumbered = vec![0; sorted.len()];
        for (rank, (_, place)) in sorted.iter().enumerate() {
            renumbered[*place as usize] = rank as i64;
        }
        Labels::Indexed {
            labels: self.labels.into_iter().map(|place| renumbered[place as usize]).collect(),
            classes: sorted.into_iter().map(|(name, _)| name).collect(),
        }
    }

    /// The classes are the given list; `Err` names the first label that is not in it.
    pub fn into_labels_of(self, classes: Vec<String>) -> Result<Labels, String> {
        let listed: HashMap<&str, i64> = classes.iter().map(String::as_str).zip(0..).collect();
        let mut renumbered = vec![0; self.places.len()];
        for (name, place) in &self.places {
            let in_list = listed.get(name.as_str());
            renumbered[*place as usize] =
                *in_list.ok_or_else(|| format!("label '{name}' is not in the list of classes"))?;
        }
        let labels = self.labels.into_iter().map(|place| renumbered[place as usize]).collect();
        Ok(Labels::Indexed { labels, classes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Names {
        let mut names = Names::default();
        of.iter().for_each(|name| names.push(name).unwrap());
        names
    }

    #[test]
    fn classes_are_the_names_that_occur_in_order() {
        let Labels::Indexed { labels, classes } = names(&["owl", "ant", "owl"]).into_labels() else {
            panic!()
        };
        assert_eq!((labels, classes), (vec![1, 0, 1], vec!["ant".to_owned(), "owl".to_owned()]));
    }

    #[test]
    fn a_given_list_of_classes_keeps_its_order() {
        let list = vec!["owl".to_owned(), "ant".to_owned()];
        let Ok(Labels::Indexed { labels, .. }) = names(&["ant", "owl"]).into_labels_of(list.clone()) else {
            panic!()
        };
        assert_eq!(labels, [1, 0]);
        assert!(names(&["bee"]).into_labels_of(list).is_err());
    }
}
