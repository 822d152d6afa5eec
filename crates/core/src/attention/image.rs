//! Attention maps as images ([`AttentionImage`]): one cell per pair of tokens, darker for more attention, with the
//! labels of wrongly labelled items in red. A token stands for a class or for a labelled item; a row of cells is the
//! attention that one token gives to all tokens. `AttentionMaps::picture` makes the images.

use super::{Token, font};

/// An RGB image of an attention map. [`AttentionImage::to_png`] encodes it, [`AttentionImage::beside`] combines
/// several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionImage {
    width: usize,
    height: usize,
    /// `[height, width, 3]`
    pixels: Vec<u8>,
}

/// Red, green and blue, 0 to 255.
type Colour = [u8; 3];

const BACKGROUND: Colour = [255, 255, 255];
const TEXT: Colour = [27, 31, 36];
const CAPTION: Colour = [89, 99, 110];
const GRID_LINE: Colour = [216, 222, 228];
const CORRECT_LABEL: Colour = [26, 127, 55];
const WRONG_LABEL: Colour = [207, 34, 46];
/// The colour of the largest attention weight.
const DARKEST: Colour = [9, 60, 140];

/// Side of a cell in pixels.
const CELL: usize = 18;
/// Margin in pixels left of the cells, for the labels of the rows.
const LEFT: usize = 62;
/// Margin in pixels above the cells, for the title and the labels of the columns.
const TOP: usize = 62;
/// Margin in pixels at the right and at the bottom, and between the edge of the image and the title.
const EDGE: usize = 12;
/// Size in image pixels of one pixel of the font; the title is twice as large.
const DOT: usize = 1;

impl AttentionImage {
    /// Draws the attention map `[tokens][tokens]`. With `truths`, the true class of every item is written in the cells
    /// of the class tokens' rows.
    pub(super) fn draw(title: &str, tokens: &[Token], map: &[Vec<f32>], truths: bool) -> Self {
        let side = tokens.len() * CELL;
        // Below the cells there is a line of text, with space above and below it.
        let (width, height) = (LEFT + side + EDGE, TOP + side + EDGE + 2 * font::HEIGHT);
        let mut image = AttentionImage { width, height, pixels: BACKGROUND.repeat(width * height) };
        image.text(EDGE, 10, title, TEXT, 2 * DOT);
        let scale = ColourScale::new(map);
        for (row, weights) in map.iter().enumerate() {
            for (column, &weight) in weights.iter().enumerate() {
                image.cell(row, column, scale.intensity(weight));
            }
        }
        image.class_borders(tokens);
        for (index, token) in tokens.iter().enumerate() {
            image.token_labels(index, token);
        }
        if truths {
            image.true_classes(tokens, map, scale);
        }
        let note = format!(
            "white {:.1} %, darkest {:.1} %; red: wrong label",
            100.0 * scale.low,
            100.0 * scale.high
        );
        image.text(LEFT, TOP + side + EDGE, &note, CAPTION, DOT);
        image
    }

    /// Combines images into one, side by side; `None` if there are no images.
    pub fn beside(images: &[AttentionImage]) -> Option<Self> {
        let height = images.iter().map(|image| image.height).max()?;
        let width = images.iter().map(|image| image.width).sum();
        let mut all = AttentionImage { width, height, pixels: BACKGROUND.repeat(width * height) };
        let mut left = 0;
        for image in images {
            for (row, pixels) in image.pixels.chunks_exact(3 * image.width).enumerate() {
                let start = 3 * (row * width + left);
                all.pixels[start..start + pixels.len()].copy_from_slice(pixels);
            }
            left += image.width;
        }
        Some(all)
    }

    /// The bytes of a PNG file.
    pub fn to_png(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().expect("writing to memory cannot fail");
        writer.write_image_data(&self.pixels).expect("three bytes per pixel");
        writer.finish().expect("writing to memory cannot fail");
        bytes
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Draws one cell; `intensity` is from 0 (background) to 1 (darkest).
    fn cell(&mut self, row: usize, column: usize, intensity: f32) {
        let colour = blend(intensity);
        self.fill(LEFT + column * CELL, TOP + row * CELL, CELL, CELL, colour);
    }

    /// Draws lines around the map, after the class tokens, and between items with different given labels.
    fn class_borders(&mut self, tokens: &[Token]) {
        let side = tokens.len() * CELL;
        let class = |token: &Token| match token {
            Token::Class { .. } => None,
            Token::Item { given, .. } => Some(*given),
        };
        let starts_class = |index: usize| index == 0 || class(&tokens[index]) != class(&tokens[index - 1]);
        let borders = (0..tokens.len()).filter(|&index| starts_class(index)).chain([tokens.len()]);
        for index in borders {
            self.fill(LEFT + index * CELL, TOP, 1, side, GRID_LINE);
            self.fill(LEFT, TOP + index * CELL, side, 1, GRID_LINE);
        }
    }

    /// Labels the row and the column of a token: `C2` is the class token of class 2, `2` an item with that given label.
    fn token_labels(&mut self, index: usize, token: &Token) {
        let (name, colour) = match token {
            Token::Class { class, .. } => (format!("C{class}"), TEXT),
            Token::Item { given, wrong: true, .. } => (given.to_string(), WRONG_LABEL),
            Token::Item { given, .. } => (given.to_string(), CORRECT_LABEL),
        };
        let width = name.len() * font::ADVANCE * DOT;
        let (x, y) = (LEFT + index * CELL, TOP + index * CELL);
        // The label centred above its column, and right-aligned beside its row.
        self.text(x + CELL.saturating_sub(width) / 2, TOP - 12, &name, colour, DOT);
        self.text(LEFT - width - 4, y + (CELL - font::HEIGHT) / 2, &name, colour, DOT);
        // A wrong label also has a red bar beyond it.
        if matches!(token, Token::Item { wrong: true, .. }) {
            self.fill(x + 3, TOP - 18, CELL - 6, 3, WRONG_LABEL);
            self.fill(EDGE, y + 3, 3, CELL - 6, WRONG_LABEL);
        }
    }

    /// Writes the true class of every item into the cells of the class tokens' rows; `-` for an outlier.
    fn true_classes(&mut self, tokens: &[Token], map: &[Vec<f32>], scale: ColourScale) {
        // The class tokens come first, so theirs are the first rows.
        let classes = tokens.iter().filter(|token| matches!(token, Token::Class { .. })).count();
        for (row, weights) in map.iter().enumerate().take(classes) {
            for (column, token) in tokens.iter().enumerate() {
                let Token::Item { truth, wrong, .. } = token else { continue };
                let name = truth.map_or("-".to_string(), |truth| truth.to_string());
                let is_dark = scale.intensity(weights[column]) > 0.5;
                let colour = match (is_dark, wrong) {
                    (true, _) => BACKGROUND,
                    (false, true) => WRONG_LABEL,
                    (false, false) => TEXT,
                };
                let width = name.len() * font::ADVANCE * DOT;
                // Centred in the cell without its first pixel row and column, which a class border may cover.
                let x = LEFT + column * CELL + CELL.saturating_sub(width) / 2 + 1;
                self.text(x, TOP + row * CELL + (CELL - font::HEIGHT) / 2 + 1, &name, colour, DOT);
            }
        }
    }

    /// Draws text with its top left corner at `x`, `y`; `dot` is the size of one font pixel.
    fn text(&mut self, x: usize, y: usize, text: &str, colour: Colour, dot: usize) {
        for (position, character) in text.chars().enumerate() {
            for (column, bits) in font::columns(character).into_iter().enumerate() {
                for row in (0..font::HEIGHT).filter(|row| bits >> row & 1 == 1) {
                    self.fill(x + (position * font::ADVANCE + column) * dot, y + row * dot, dot, dot, colour);
                }
            }
        }
    }

    /// Fills a rectangle, clipped to the image.
    fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, colour: Colour) {
        for row in y..(y + height).min(self.height) {
            for column in x..(x + width).min(self.width) {
                let start = 3 * (row * self.width + column);
                self.pixels[start..start + 3].copy_from_slice(&colour);
            }
        }
    }
}

/// The colour scale of one map: its smallest attention weight is white, its largest the darkest blue.
#[derive(Clone, Copy)]
struct ColourScale {
    /// The smallest attention weight, drawn white.
    low: f32,
    /// The largest attention weight, drawn in [`DARKEST`].
    high: f32,
}

impl ColourScale {
    fn new(map: &[Vec<f32>]) -> Self {
        let values = || map.iter().flatten().copied();
        ColourScale { low: values().fold(f32::INFINITY, f32::min), high: values().fold(0.0, f32::max) }
    }

    /// An attention weight scaled to the range from 0 (smallest) to 1 (largest); 0 if all weights of the map are equal,
    /// because `max` prevents a division by 0.
    fn intensity(self, weight: f32) -> f32 {
        ((weight - self.low) / (self.high - self.low).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

/// The colour for an intensity, interpolated between the background (0) and the darkest blue (1).
fn blend(intensity: f32) -> Colour {
    std::array::from_fn(|channel| {
        let (background, darkest) = (f32::from(BACKGROUND[channel]), f32::from(DARKEST[channel]));
        (background + intensity * (darkest - background)).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_drawn_with_darker_cells_for_more_attention() {
        let mut tokens: Vec<Token> =
            (0..2).map(|class| Token::Class { class, name: format!("class {class}") }).collect();
        tokens.extend((0..4).map(|row| Token::Item {
            given: row / 2,
            truth: (row != 3).then_some(0),
            row,
            item: None,
            wrong: row > 1,
        }));
        let map = vec![vec![0.25, 0.0, 0.5, 0.1, 0.1, 0.05]; 6];
        let image = AttentionImage::draw("layer 1 of 1, head 1", &tokens, &map, true);
        assert_eq!(image.size().0, LEFT + 6 * CELL + EDGE);
        let decoder = png::Decoder::new(std::io::Cursor::new(image.to_png()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, image.pixels);
        // The red value of a pixel inside a cell of the first row; lower is darker.
        let at = |column: usize| {
            let start = 3 * ((TOP + 2) * image.width + LEFT + column * CELL + 2);
            pixels[start]
        };
        assert!(at(2) < at(0) && at(0) < at(1), "more attention is darker");
        let twice = AttentionImage::beside(&[image.clone(), image.clone()]).unwrap();
        assert_eq!(twice.size(), (2 * image.width, image.height));
        let row = |image: &AttentionImage| image.pixels[..3 * image.width].to_vec();
        assert_eq!(row(&twice), row(&image).repeat(2));
    }
}
