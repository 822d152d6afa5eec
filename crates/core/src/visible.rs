//! Makes names of files and classes safe to print: control characters, line ends and marks that change the direction of
//! writing are escaped.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A name in one line: what would break or disguise it is written as an escape, letters of any script stay.
pub fn visible(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter {
            letter if is_disguise(letter) => shown.extend(letter.escape_default()),
            letter => shown.push(letter),
        }
    }
    shown
}

/// A text of several lines in which everything but the line ends is as in [`visible`].
pub fn visible_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

/// Controls, line separators, and what turns or hides the letters behind it.
fn is_disguise(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The columns a text takes in a terminal.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// A text in at most so many columns; what is left out in its middle is marked.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.into();
    }
    let room = most.saturating_sub(1);
    let head = taken(text.chars(), room / 2);
    let tail: String = taken(text.chars().rev(), room - room / 2).chars().rev().collect();
    format!("{head}…{tail}")
}

/// As many letters as fit.
fn taken(letters: impl Iterator<Item = char>, room: usize) -> String {
    let mut used = 0;
    letters
        .take_while(|letter| {
            used += letter.width().unwrap_or(0);
            used <= room
        })
        .collect()
}

/// A text followed by spaces up to so many columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_line_and_letters_of_any_script_stay_letters() {
        assert_eq!(visible("two\nlines\t\u{202e}gpj.exe"), "two\\nlines\\t\\u{202e}gpj.exe");
        assert_eq!(visible("猫/Käse «été».jpg"), "猫/Käse «été».jpg");
    }

    #[test]
    fn of_several_lines_only_the_line_ends_stay() {
        assert_eq!(visible_lines("a\x1b[31m\nb\r\u{9b}\n"), "a\\u{1b}[31m\nb\\r\\u{9b}\n");
    }

    #[test]
    fn long_names_are_shortened_in_the_middle_by_columns() {
        assert_eq!(shortened("abcdefghij", 7), "abc…hij");
        assert_eq!(shortened("猫猫猫猫猫", 7), "猫…猫");
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(padded("猫", 4), "猫  ");
    }
}
