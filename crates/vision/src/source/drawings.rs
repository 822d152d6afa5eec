//! The built-in drawings (`omniglot`) as a source of images.

use std::path::Path;

use super::{Collection, ImageLocation};
use crate::decoded_image::{Channels, DecodedImage};
use crate::error::{Result, Unreadable};
use crate::omniglot::{Character, Omniglot};

/// The name that users give instead of a path.
pub(crate) const NAME: &str = "omniglot";

/// Lists all drawings. Classes are named `Alphabet/character01`, as the folders in the published archive. Items are
/// named `Alphabet/character01/01`, with the number of the drawing from 1.
pub(super) fn list() -> Result<Collection> {
    let omniglot = Omniglot::embedded()?;
    let mut images = Vec::new();
    for (index, character) in omniglot.characters().iter().enumerate() {
        for number in 0..omniglot.drawings_per_character() {
            let class = class_name(character);
            let item = format!("{class}/{:02}", number + 1);
            images.push((class, item, ImageLocation::Drawing { character: index, number }));
        }
    }
    Ok(Collection::new(Path::new(NAME), images, Vec::new()))
}

/// The name of the class of a character: `Alphabet/character01`.
pub(crate) fn class_name(character: &Character<'_>) -> String {
    format!("{}/{}", character.alphabet, character.name)
}

/// Drawing `number` of the character with index `character_index`, both from 0: black ink on white paper, as in the
/// published files.
pub(super) fn image(
    character_index: usize,
    number: usize,
    channels: Channels,
) -> Result<DecodedImage, Unreadable> {
    let drawing = Omniglot::embedded().and_then(|omniglot| omniglot.drawing(character_index, number));
    let drawing = drawing.map_err(|error| Unreadable::Decoder(error.to_string()))?;
    Ok(drawing.to_image(channels))
}
