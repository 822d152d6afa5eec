//! Finds methods by name and reads their parameters.

use std::collections::BTreeMap;
use std::path::Path;

use super::Method;
use crate::error::{Error, Result};

/// What can be known of a method without running it.
#[derive(Clone, Copy)]
pub struct MethodInfo {
    /// The name it is asked for by.
    pub name: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Makes it from checked names; values are checked while they are read.
    pub build: fn(&Parameters<'_>) -> Result<Box<dyn Method>>,
}

impl MethodInfo {
    /// Whether it can be asked for by its name alone: a parameter without a default must be given.
    pub fn is_complete(&self) -> bool {
        self.parameters.iter().all(|parameter| !parameter.default.is_empty())
    }
}

/// Something that can be set.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The name before the `=`.
    pub name: &'static str,
    /// The value where none is given; empty if one must be.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// The parameters of one method: those given, and the defaults of the others.
pub struct Parameters<'a> {
    info: &'a MethodInfo,
    given: BTreeMap<&'a str, &'a str>,
}

impl<'a> Parameters<'a> {
    /// The text of a parameter.
    ///
    /// # Panics
    /// If the method does not list it.
    pub fn text(&self, name: &str) -> &'a str {
        let listed = self.info.parameters.iter().find(|parameter| parameter.name == name);
        let default = listed.expect("a method reads only parameters it lists").default;
        self.given.get(name).copied().unwrap_or(default)
    }

    /// A positive number.
    pub fn positive(&self, name: &'static str) -> Result<f32> {
        self.parsed(name, "a number above 0", |value: &f32| *value > 0.0 && value.is_finite())
    }

    /// A number that may be 0.
    pub fn not_negative(&self, name: &'static str) -> Result<f32> {
        self.parsed(name, "a number, 0 or above", |value: &f32| *value >= 0.0 && value.is_finite())
    }

    /// A number between 0 and 1.
    pub fn share(&self, name: &'static str) -> Result<f32> {
        self.parsed(name, "a number from 0 to 1", |value: &f32| (0.0..=1.0).contains(value))
    }

    /// A whole number from 1 to a million.
    pub fn count(&self, name: &'static str) -> Result<usize> {
        self.parsed(name, "a whole number from 1 to 1000000", |value| (1..=1_000_000).contains(value))
    }

    /// The path of a file.
    pub fn file(&self, name: &'static str, allowed: &'static str) -> Result<&'a Path> {
        match self.text(name) {
            "" => Err(self.refuse(name, allowed)),
            path => Ok(Path::new(path)),
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(
        &self,
        name: &'static str,
        allowed: &'static str,
        words: &[(&str, T)],
    ) -> Result<T> {
        let text = self.text(name);
        let found = words.iter().find(|(word, _)| *word == text).map(|&(_, value)| value);
        found.ok_or_else(|| self.refuse(name, allowed))
    }

    /// A value of a parameter that cannot be used.
    pub fn refuse(&self, name: &'static str, allowed: &'static str) -> Error {
        Error::BadParameter { method: self.info.name, name, given: self.text(name).into(), allowed }
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        name: &'static str,
        allowed: &'static str,
        fine: impl Fn(&T) -> bool,
    ) -> Result<T> {
        self.text(name).parse().ok().filter(fine).ok_or_else(|| self.refuse(name, allowed))
    }
}

/// A method and the text it was asked for by.
pub struct NamedMethod {
    /// For instance `cosine:T=0.5`, or the name given with `as=`.
    pub label: String,
    /// The method.
    pub method: Box<dyn Method>,
}

/// All methods that can be asked for.
pub struct Registry {
    infos: Vec<MethodInfo>,
}

impl Default for Registry {
    fn default() -> Self {
        use super::*;
        Registry {
            infos: vec![
                oracle::INFO,
                protonet::INFO,
                median::INFO,
                euclidean::INFO,
                absolute::INFO,
                cosine::INFO,
                nearest::INFO,
                linear::INFO,
                matching::INFO,
                baseline_plus_plus::INFO,
                rnnp::INFO,
                tranfs::INFO,
                relabel::INFO,
            ],
        }
    }
}

impl Registry {
    /// Adds a method that lives elsewhere.
    pub fn register(&mut self, info: MethodInfo) {
        self.infos.retain(|known| known.name != info.name);
        self.infos.push(info);
    }

    /// All methods.
    pub fn infos(&self) -> &[MethodInfo] {
        &self.infos
    }

    /// Makes a method from text: its name, then parameters after colons (`median:steps=20:eps=0.1`).
    pub fn parse(&self, text: &str) -> Result<NamedMethod> {
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let info =
            self.infos.iter().find(|info| info.name == name).ok_or_else(|| self.unknown_method(name))?;
        let mut parameters = Parameters { info, given: BTreeMap::new() };
        let mut label = None;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if key == "as" && !value.is_empty() {
                label = Some(value.to_string());
                continue;
            }
            if !info.parameters.iter().any(|parameter| parameter.name == key) {
                return Err(unknown_parameter(info, key));
            }
            parameters.given.insert(key, value);
        }
        let label = label.unwrap_or_else(|| shortened(text.trim()));
        Ok(NamedMethod { label, method: (info.build)(&parameters)? })
    }

    /// Makes all methods of a list; of an empty list, all methods that need no model file.
    ///
    /// # Errors
    /// [`Error::MethodTwice`] if two methods have the same label, and the errors of [`Registry::parse`].
    pub fn parse_all<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<NamedMethod>> {
        let mut methods: Vec<NamedMethod> = match names.is_empty() {
            true => {
                let complete = self.infos.iter().filter(|info| info.is_complete());
                complete.map(|info| self.parse(info.name)).collect::<Result<_>>()?
            }
            false => Vec::with_capacity(names.len()),
        };
        for name in names {
            let method = self.parse(name.as_ref())?;
            if methods.iter().any(|earlier| earlier.label == method.label) {
                return Err(Error::MethodTwice { label: method.label });
            }
            methods.push(method);
        }
        Ok(methods)
    }

    fn unknown_method(&self, name: &str) -> Error {
        let names: Vec<&str> = self.infos.iter().map(|info| info.name).collect();
        Error::UnknownMethod { name: name.into(), nearest: nearest(name, &names), known: names.join(", ") }
    }
}

/// Tables have no room for the folders of a model file.
fn shortened(text: &str) -> String {
    let short = |part: &str| match part.strip_prefix("model=").map(|path| Path::new(path).file_stem()) {
        Some(Some(stem)) => format!("model={}", stem.to_string_lossy()),
        _ => part.to_string(),
    };
    text.split(':').map(short).collect::<Vec<_>>().join(":")
}

fn unknown_parameter(info: &MethodInfo, name: &str) -> Error {
    let names: Vec<&str> = info.parameters.iter().map(|parameter| parameter.name).collect();
    let known = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    Error::UnknownParameter { method: info.name, name: name.into(), nearest: nearest(name, &names), known }
}

/// The name somebody may have meant.
pub(crate) fn nearest(name: &str, known: &[&str]) -> Option<String> {
    let lower = name.to_lowercase();
    let scored = known.iter().map(|known| (strsim::jaro_winkler(&lower, &known.to_lowercase()), known));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.7).then(|| best.1.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Error {
        Registry::default().parse(text).err().expect("it should be refused")
    }

    #[test]
    fn every_method_is_found_by_its_name_with_its_defaults() {
        let registry = Registry::default();
        for info in registry.infos().iter().filter(|info| info.is_complete()) {
            assert!(registry.parse(info.name).is_ok(), "{}", info.name);
            for parameter in info.parameters {
                let spelled_out = format!("{}:{}={}", info.name, parameter.name, parameter.default);
                assert!(registry.parse(&spelled_out).is_ok(), "{spelled_out}");
            }
        }
    }

    #[test]
    fn a_method_without_its_model_says_what_it_needs() {
        let message = problem("tranfs").to_string();
        assert!(message.contains("model is a model file, as `trueshot train tranfs` writes it"), "{message}");
        assert!(problem("tranfs:model=nowhere.safetensors").to_string().contains("cannot read nowhere"));
    }

    #[test]
    fn labels_are_short_and_can_be_chosen() {
        assert_eq!(shortened("tranfs:model=a/b/sym.safetensors:orders=8"), "tranfs:model=sym:orders=8");
        assert_eq!(Registry::default().parse("cosine:T=0.5:as=warm").unwrap().label, "warm");
        assert_eq!(Registry::default().parse("cosine:T=0.5").unwrap().label, "cosine:T=0.5");
    }

    #[test]
    fn misspelt_names_are_answered_with_the_nearest() {
        assert_eq!(problem("euclidian").hint().unwrap(), "did you mean 'euclidean'?");
        assert_eq!(problem("ProtoNet").hint().unwrap(), "did you mean 'protonet'?");
        assert_eq!(problem("median:step=3").hint().unwrap(), "did you mean 'steps'?");
        assert_eq!(problem("xyz").hint(), None);
        assert!(problem("protonet:T=3").to_string().ends_with("it has: none"));
    }

    #[test]
    fn values_out_of_range_say_what_is_allowed() {
        for text in
            ["cosine:T=0", "cosine:T=-1", "cosine:T=nan", "cosine:T=", "cosine:T=warm", "cosine:T=inf"]
        {
            assert!(problem(text).to_string().ends_with("T is a number above 0"), "{text}");
        }
        assert!(problem("nearest:k=0").to_string().ends_with("a whole number from 1 to 1000000"));
        assert!(problem("median:hessian=half").to_string().contains("diagonal or full"));
    }
}
