//! A map as a picture: darker is more, wrongly labelled items in red.

use super::{Token, font};

/// An RGB picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionImage {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

type Colour = [u8; 3];

const PAPER: Colour = [255, 255, 255];
const INK: Colour = [27, 31, 36];
const SOFT: Colour = [89, 99, 110];
const RULE: Colour = [216, 222, 228];
const RIGHT: Colour = [26, 127, 55];
const WRONG: Colour = [207, 34, 46];
/// The darkest cell.
const DEEP: Colour = [9, 60, 140];

/// Side of a cell, and the sides of the picture around them.
const CELL: usize = 18;
const LEFT: usize = 62;
const TOP: usize = 62;
const EDGE: usize = 12;
/// Dots of letters are drawn so large.
const DOT: usize = 1;

impl AttentionImage {
    /// Draws a map. With `truths`, the true class of every item stands where class tokens look at it.
    pub(super) fn draw(title: &str, tokens: &[Token], map: &[Vec<f32>], truths: bool) -> Self {
        let side = tokens.len() * CELL;
        let (width, height) = (LEFT + side + EDGE, TOP + side + EDGE + 2 * font::HEIGHT);
        let mut picture = AttentionImage { width, height, pixels: PAPER.repeat(width * height) };
        picture.text(EDGE, 10, title, INK, 2 * DOT);
        let scale = Scale::of(map);
        for (row, shares) in map.iter().enumerate() {
            for (column, &share) in shares.iter().enumerate() {
                picture.cell(row, column, scale.strength(share));
            }
        }
        picture.rules(tokens);
        for (place, token) in tokens.iter().enumerate() {
            picture.names(place, token);
        }
        if truths {
            picture.truths(tokens, map, scale);
        }
        let note = format!(
            "white {:.1} %, darkest {:.1} %; red: wrong label",
            100.0 * scale.low,
            100.0 * scale.high
        );
        picture.text(LEFT, TOP + side + EDGE, &note, SOFT, DOT);
        picture
    }

    /// Pictures side by side; none if there are none.
    pub fn beside(pictures: &[AttentionImage]) -> Option<Self> {
        let height = pictures.iter().map(|picture| picture.height).max()?;
        let width = pictures.iter().map(|picture| picture.width).sum();
        let mut all = AttentionImage { width, height, pixels: PAPER.repeat(width * height) };
        let mut left = 0;
        for picture in pictures {
            for (row, pixels) in picture.pixels.chunks_exact(3 * picture.width).enumerate() {
                let place = 3 * (row * width + left);
                all.pixels[place..place + pixels.len()].copy_from_slice(pixels);
            }
            left += picture.width;
        }
        Some(all)
    }

    /// The bytes of a PNG file.
    pub fn to_png(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().expect("memory takes every byte");
        writer.write_image_data(&self.pixels).expect("as many bytes as pixels");
        writer.finish().expect("memory takes every byte");
        bytes
    }

    /// Width and height.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    fn cell(&mut self, row: usize, column: usize, strength: f32) {
        let colour = mixed(strength);
        self.fill(LEFT + column * CELL, TOP + row * CELL, CELL, CELL, colour);
    }

    /// Lines between the classes.
    fn rules(&mut self, tokens: &[Token]) {
        let side = tokens.len() * CELL;
        let class = |token: &Token| match token {
            Token::Class { .. } => None,
            Token::Item { given, .. } => Some(*given),
        };
        let begins = |place: usize| place == 0 || class(&tokens[place]) != class(&tokens[place - 1]);
        let ends = (0..tokens.len()).filter(|&place| begins(place)).chain([tokens.len()]);
        for place in ends {
            self.fill(LEFT + place * CELL, TOP, 1, side, RULE);
            self.fill(LEFT, TOP + place * CELL, side, 1, RULE);
        }
    }

    /// What a row and a column stand for: `C2` is a class token, `2` an item filed under it.
    fn names(&mut self, place: usize, token: &Token) {
        let (name, colour) = match token {
            Token::Class { class, .. } => (format!("C{class}"), INK),
            Token::Item { given, wrong: true, .. } => (given.to_string(), WRONG),
            Token::Item { given, .. } => (given.to_string(), RIGHT),
        };
        let wide = name.len() * font::ADVANCE * DOT;
        let (x, y) = (LEFT + place * CELL, TOP + place * CELL);
        self.text(x + CELL.saturating_sub(wide) / 2, TOP - 12, &name, colour, DOT);
        self.text(LEFT - wide - 4, y + (CELL - font::HEIGHT) / 2, &name, colour, DOT);
        if matches!(token, Token::Item { wrong: true, .. }) {
            self.fill(x + 3, TOP - 18, CELL - 6, 3, WRONG);
            self.fill(EDGE, y + 3, 3, CELL - 6, WRONG);
        }
    }

    fn truths(&mut self, tokens: &[Token], map: &[Vec<f32>], scale: Scale) {
        let classes = tokens.iter().filter(|token| matches!(token, Token::Class { .. })).count();
        for (row, shares) in map.iter().enumerate().take(classes) {
            for (column, token) in tokens.iter().enumerate() {
                let Token::Item { truth, wrong, .. } = token else { continue };
                let name = truth.map_or("-".to_string(), |truth| truth.to_string());
                let is_dark = scale.strength(shares[column]) > 0.5;
                let colour = match (is_dark, wrong) {
                    (true, _) => PAPER,
                    (false, true) => WRONG,
                    (false, false) => INK,
                };
                let wide = name.len() * font::ADVANCE * DOT;
                let x = LEFT + column * CELL + CELL.saturating_sub(wide) / 2 + 1;
                self.text(x, TOP + row * CELL + (CELL - font::HEIGHT) / 2 + 1, &name, colour, DOT);
            }
        }
    }

    fn text(&mut self, x: usize, y: usize, text: &str, colour: Colour, dot: usize) {
        for (number, letter) in text.chars().enumerate() {
            for (column, dots) in font::columns(letter).into_iter().enumerate() {
                for row in (0..font::HEIGHT).filter(|row| dots >> row & 1 == 1) {
                    self.fill(x + (number * font::ADVANCE + column) * dot, y + row * dot, dot, dot, colour);
                }
            }
        }
    }

    fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, colour: Colour) {
        for row in y..(y + height).min(self.height) {
            for column in x..(x + width).min(self.width) {
                let place = 3 * (row * self.width + column);
                self.pixels[place..place + 3].copy_from_slice(&colour);
            }
        }
    }
}

/// What white and the deepest blue stand for.
#[derive(Clone, Copy)]
struct Scale {
    low: f32,
    high: f32,
}

impl Scale {
    fn of(map: &[Vec<f32>]) -> Self {
        let values = || map.iter().flatten().copied();
        Scale { low: values().fold(f32::INFINITY, f32::min), high: values().fold(0.0, f32::max) }
    }

    fn strength(self, share: f32) -> f32 {
        ((share - self.low) / (self.high - self.low).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

/// From paper to the deepest blue.
fn mixed(share: f32) -> Colour {
    std::array::from_fn(|channel| {
        let (paper, deep) = (f32::from(PAPER[channel]), f32::from(DEEP[channel]));
        (paper + share * (deep - paper)).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_becomes_a_png_of_its_size() {
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
        let picture = AttentionImage::draw("layer 1 of 1, head 1", &tokens, &map, true);
        assert_eq!(picture.size().0, LEFT + 6 * CELL + EDGE);
        let decoder = png::Decoder::new(std::io::Cursor::new(picture.to_png()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, picture.pixels);
        let at = |column: usize| {
            let place = 3 * ((TOP + 2) * picture.width + LEFT + column * CELL + 2);
            pixels[place]
        };
        assert!(at(2) < at(0) && at(0) < at(1), "more attention is darker");
        let twice = AttentionImage::beside(&[picture.clone(), picture.clone()]).unwrap();
        assert_eq!(twice.size(), (2 * picture.width, picture.height));
        let row = |picture: &AttentionImage| picture.pixels[..3 * picture.width].to_vec();
        assert_eq!(row(&twice), row(&picture).repeat(2));
    }
}
