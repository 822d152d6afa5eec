//! Groups of rows that are augmented copies of the same image ([`AugmentedCopies`]): embeddings may contain rows of an
//! image and of randomly changed copies of it. The item names of copies end in `#1`, `#2` and so on.
//!
//! An episode (a small classification problem drawn from the rows) has labelled support items and queries to classify.
//! Two copies of one image in one episode would leak labels: a query could have a copy in the support set. So if there
//! are copies, the sampler draws images instead of rows, and then one of the copies of each image.

use std::collections::HashMap;

use crate::embeddings::Embeddings;

/// The rows of embeddings grouped by class and image.
///
/// ```
/// use trueshot::embeddings::{Embeddings, Items};
/// use trueshot::episode::AugmentedCopies;
///
/// let data = Embeddings::from_rows(vec![0.0, 1.0, 2.0], 1, vec!["cat".into(); 3])?;
/// let data = data.with_items(Items::from_names(["tom.jpg", "kit.jpg", "tom.jpg#1"]))?;
/// let copies = AugmentedCopies::of(&data).expect("an item is a copy");
/// assert_eq!(copies.count(0), 2);
/// assert_eq!(copies.rows(0, 0), [0, 2]);
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug)]
pub struct AugmentedCopies {
    classes: Vec<ClassImages>,
}

/// The rows of one class, ordered by image.
#[derive(Debug, Default)]
struct ClassImages {
    /// The rows; those of one image are next to each other.
    rows: Vec<u32>,
    /// The index in `rows` at which each image starts, and at the end the length of `rows`.
    starts: Vec<u32>,
}

impl AugmentedCopies {
    /// Groups rows by image; `None` if no row is a copy of another.
    pub fn of(embeddings: &Embeddings) -> Option<Self> {
        let items = embeddings.items()?;
        (0..items.len()).any(|row| items.get(row).is_some_and(is_copy)).then(|| {
            let class = |class: usize| ClassImages::new(embeddings, embeddings.rows_of(class));
            AugmentedCopies { classes: (0..embeddings.classes().len()).map(class).collect() }
        })
    }

    /// The number of different images of a class.
    pub fn count(&self, class: usize) -> usize {
        self.classes[class].starts.len() - 1
    }

    /// The rows of one image of a class; `image` is below [`AugmentedCopies::count`].
    pub fn rows(&self, class: usize, image: usize) -> &[u32] {
        let ClassImages { rows, starts } = &self.classes[class];
        &rows[starts[image] as usize..starts[image + 1] as usize]
    }
}

impl ClassImages {
    /// Groups the rows of one class by image. Images are in the order of their first rows.
    fn new(embeddings: &Embeddings, rows: &[u32]) -> Self {
        // The index in `images` of every image name, and the rows of every image.
        let mut indices: HashMap<&str, usize> = HashMap::new();
        let mut images: Vec<Vec<u32>> = Vec::new();
        for &row in rows {
            let name = embeddings.item(row as usize).map_or("", image_name);
            // A name that is new gets the next index.
            let index = *indices.entry(name).or_insert(images.len());
            images.resize_with(images.len().max(index + 1), Vec::new);
            images[index].push(row);
        }
        let mut class = ClassImages { rows: Vec::with_capacity(rows.len()), starts: vec![0] };
        for image in images {
            class.rows.extend(image);
            class.starts.push(class.rows.len() as u32);
        }
        class
    }
}

/// The name of the image that an item shows: the item's name without the suffix of a copy, `#` and digits.
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
