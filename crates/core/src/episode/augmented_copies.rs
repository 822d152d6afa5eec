//! Rows that show the same image: augmented copies, whose item names end in `#1`, `#2` and so on.
//!
//! Two copies of one image in one episode would give the answer away: a query would meet itself in the support
//! set. So where there are copies an episode draws images, and any copy of each.

use std::collections::HashMap;

use crate::embeddings::Embeddings;

/// Which rows show the same image, class by class.
#[derive(Debug)]
pub struct AugmentedCopies {
    classes: Vec<Copies>,
}

/// The rows of a class, those of one image side by side.
#[derive(Debug, Default)]
struct Copies {
    rows: Vec<u32>,
    /// Where each image begins, and the end.
    starts: Vec<u32>,
}

impl AugmentedCopies {
    /// Groups rows by image; `None` where there are no copies.
    pub fn of(embeddings: &Embeddings) -> Option<Self> {
        let items = embeddings.items()?;
        (0..items.len()).any(|row| items.get(row).is_some_and(is_copy)).then(|| {
            let class = |class: usize| Copies::of(embeddings, embeddings.rows_of(class));
            AugmentedCopies { classes: (0..embeddings.classes().len()).map(class).collect() }
        })
    }

    /// AugmentedCopies of a class.
    pub fn count(&self, class: usize) -> usize {
        self.classes[class].starts.len() - 1
    }

    /// The rows that show one of them.
    pub fn rows(&self, class: usize, image: usize) -> &[u32] {
        let Copies { rows, starts } = &self.classes[class];
        &rows[starts[image] as usize..starts[image + 1] as usize]
    }
}

impl Copies {
    fn of(embeddings: &Embeddings, rows: &[u32]) -> Self {
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut images: Vec<Vec<u32>> = Vec::new();
        for &row in rows {
            let name = embeddings.item(row as usize).map_or("", image_name);
            let place = *places.entry(name).or_insert(images.len());
            images.resize_with(images.len().max(place + 1), Vec::new);
            images[place].push(row);
        }
        let mut copies = Copies { rows: Vec::with_capacity(rows.len()), starts: vec![0] };
        for image in images {
            copies.rows.extend(image);
            copies.starts.push(copies.rows.len() as u32);
        }
        copies
    }
}

/// The name of the image a copy shows.
pub fn image_name(item: &str) -> &str {
    match item.rsplit_once('#') {
        Some((image, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => image,
        _ => item,
    }
}

fn is_copy(item: &str) -> bool {
    image_name(item).len() < item.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::Items;

    #[test]
    fn copies_are_grouped_by_the_image_they_show() {
        let names = ["a/1.jpg", "a/2.jpg", "b/1.jpg", "a/1.jpg#1", "b/1.jpg#1", "a/1.jpg#2", "a/C#"];
        let labels = ["a", "a", "b", "a", "b", "a", "a"].map(str::to_string).to_vec();
        let plain = Embeddings::from_rows(vec![0.5; 7], 1, labels).unwrap();
        assert!(AugmentedCopies::of(&plain).is_none());
        let named = plain.with_items(Items::from_names(names)).unwrap();
        let images = AugmentedCopies::of(&named).unwrap();
        assert_eq!((images.count(0), images.count(1)), (3, 1));
        assert_eq!(images.rows(0, 0), [0, 3, 5]);
        assert_eq!(images.rows(0, 2), [6], "a # without a number is part of the name");
    }
}
