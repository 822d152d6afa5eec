//! The registry of methods: [`Registry::parse`] makes a method from text such as `median:steps=20:eps=0.1`.
//!
//! The grammar is `name[:parameter=value]...[:as=label]`; `as` replaces the label under which results report the
//! method. Every method describes itself with a [`MethodInfo`], so that help texts, documentation and error messages
//! list the same names, defaults and meanings that the parser uses.

use std::collections::BTreeMap;
use std::path::Path;

use super::Method;
use crate::error::{Error, Result};

/// The description of a method: its name, its parameters and the function that makes it.
///
/// ```
/// let registry = trueshot::method::Registry::default();
/// let median = registry.infos().iter().find(|info| info.name == "median").unwrap();
/// assert_eq!(median.parameters[0].name, "steps");
/// assert_eq!(median.parameters[0].default, "5");
/// ```
#[derive(Clone, Copy)]
pub struct MethodInfo {
    /// The name that selects the method, unique in a registry.
    pub name: &'static str,
    /// One line for help texts, in lower case and without a full stop.
    pub summary: &'static str,
    /// All parameters that the method accepts.
    pub parameters: &'static [Parameter],
    /// Whether the method classifies all queries of a task together (see [`Method::is_transductive`]).
    pub transductive: bool,
    /// Makes the method. The names of the parameters have been checked; their values are checked as they are read.
    pub build: fn(&Parameters<'_>) -> Result<Box<dyn Method>>,
}

impl MethodInfo {
    /// Whether the name alone selects the method, because every parameter has a default.
    pub fn is_complete(&self) -> bool {
        self.parameters.iter().all(|parameter| !parameter.default.is_empty())
    }

    /// Whether the method is used if no methods are chosen: it needs no model file and is not transductive.
    pub fn is_default(&self) -> bool {
        self.is_complete() && !self.transductive
    }
}

/// The description of one parameter of a method.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The name before the `=`.
    pub name: &'static str,
    /// The default value as text; empty if the parameter is required.
    pub default: &'static str,
    /// One line for help texts.
    pub meaning: &'static str,
}

/// The parameter values of one method: those in the text, and the defaults of the others.
///
/// [`MethodInfo::build`] reads them with the getters below. All except [`text`](Self::text) fail with
/// [`Error::BadParameter`] if the value is not allowed; [`file`](Self::file) fails with [`Error::NeedsModel`] if the
/// model file is missing.
pub struct Parameters<'a> {
    info: &'a MethodInfo,
    given: BTreeMap<&'a str, &'a str>,
}

impl<'a> Parameters<'a> {
    /// The value of a parameter as text, unchecked.
    ///
    /// # Panics
    /// If the parameter is not listed in the method's [`MethodInfo::parameters`].
    pub fn text(&self, name: &str) -> &'a str {
        let listed = self.info.parameters.iter().find(|parameter| parameter.name == name);
        let default = listed.expect("a method reads only parameters it lists").default;
        self.given.get(name).copied().unwrap_or(default)
    }

    /// A parameter that must be a finite number above 0.
    pub fn positive(&self, name: &'static str) -> Result<f32> {
        self.parsed(name, "a number above 0", |value: &f32| *value > 0.0 && value.is_finite())
    }

    /// A parameter that must be a finite number, 0 or above.
    pub fn not_negative(&self, name: &'static str) -> Result<f32> {
        self.parsed(name, "a number, 0 or above", |value: &f32| *value >= 0.0 && value.is_finite())
    }

    /// A parameter that must be a number from 0 to 1, both included.
    pub fn fraction(&self, name: &'static str) -> Result<f32> {
        self.parsed(name, "a number from 0 to 1", |value: &f32| (0.0..=1.0).contains(value))
    }

    /// A parameter that must be a whole number from 1 to a million.
    pub fn count(&self, name: &'static str) -> Result<usize> {
        self.parsed(name, "a whole number from 1 to 1000000", |value| (1..=1_000_000).contains(value))
    }

    /// A parameter that must be the path of a file. `allowed` describes the file in the error if no path is given. For
    /// the parameter `model`, that error is [`Error::NeedsModel`].
    pub fn file(&self, name: &'static str, allowed: &'static str) -> Result<&'a Path> {
        match self.text(name) {
            "" if name == "model" => Err(Error::NeedsModel { method: self.info.name }),
            "" => Err(self.refuse(name, allowed)),
            path => Ok(Path::new(path)),
        }
    }

    /// A parameter that must be one of the words of `choices`, each with the value it stands for.
    pub fn choice<T: Copy>(
        &self,
        name: &'static str,
        allowed: &'static str,
        choices: &[(&str, T)],
    ) -> Result<T> {
        let text = self.text(name);
        let value = choices.iter().find(|(word, _)| *word == text).map(|&(_, value)| value);
        value.ok_or_else(|| self.refuse(name, allowed))
    }

    /// The error for a parameter whose value is not allowed; `allowed` describes the allowed values.
    pub fn refuse(&self, name: &'static str, allowed: &'static str) -> Error {
        Error::BadParameter { method: self.info.name, name, given: self.text(name).into(), allowed }
    }

    /// A parameter of any type; `allowed` describes the values for which `is_allowed` is true.
    pub(super) fn parsed<T: std::str::FromStr>(
        &self,
        name: &'static str,
        allowed: &'static str,
        is_allowed: impl Fn(&T) -> bool,
    ) -> Result<T> {
        self.text(name).parse().ok().filter(is_allowed).ok_or_else(|| self.refuse(name, allowed))
    }
}

/// A method with the label under which results report it.
///
/// ```
/// let registry = trueshot::method::Registry::default();
/// assert_eq!(registry.parse("cosine:T=0.5")?.label, "cosine:T=0.5");
/// assert_eq!(registry.parse("cosine:T=0.5:as=sharp")?.label, "sharp");
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct NamedMethod {
    /// The text the method was parsed from, such as `cosine:T=0.5`, or the label given with `as=`.
    pub label: String,
    /// The method itself, with its parameters set.
    pub method: Box<dyn Method>,
}

impl NamedMethod {
    /// Checks that the method gives a classifier for single rows, as saved classifiers need it.
    ///
    /// # Errors
    /// [`Error::Transductive`] if it is transductive.
    pub fn check_not_transductive(&self) -> Result<()> {
        match self.method.is_transductive() {
            true => Err(Error::Transductive { method: self.label.clone() }),
            false => Ok(()),
        }
    }
}

/// The parameters whose values can be paths of files, also of methods that other crates add. Labels show only the name
/// of such a file without its extension, see [`shortened`].
const FILE_PARAMETERS: [&str; 2] = ["model", "centre"];

/// The known methods, by name. The default registry has all methods of this crate; other crates add theirs with
/// [`Registry::register`].
///
/// ```
/// use trueshot::method::Registry;
/// use trueshot::rng::{Purpose, Rng};
/// use trueshot::task::{Queries, SupportSet, Task};
///
/// let task = Task::new(SupportSet::new(vec![&[0.0, 1.0], &[1.0, 0.0]], vec![0, 1], 2));
/// let mut rng = Rng::new(0, Purpose::Method, 0);
/// let fitted = Registry::default().parse("protonet")?.method.fit(&task, &mut rng)?;
/// let queries = Queries::new(vec![&[0.9, 0.2]]);
/// assert_eq!(fitted.classifier.classify(&task, &queries, &mut rng), [1]);
/// # Ok::<(), trueshot::Error>(())
/// ```
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
                simpleshot::INFO,
                tranfs::INFO,
                relabel::INFO,
                laplacianshot::INFO,
                tim::INFO,
                bd_cspn::INFO,
                pt_map::INFO,
            ],
        }
    }
}

impl Registry {
    /// Adds a method of another crate, replacing a method of the same name.
    pub fn register(&mut self, info: MethodInfo) {
        self.infos.retain(|known| known.name != info.name);
        self.infos.push(info);
    }

    /// The descriptions of all methods, in the order in which they are listed to the user.
    pub fn infos(&self) -> &[MethodInfo] {
        &self.infos
    }

    /// Makes a method from text: its name, then parameters after colons (`median:steps=20:eps=0.1`). A colon in the
    /// path of a file is part of the path, unless `KEY=` follows it (`tranfs:model=C:\models\five.safetensors`).
    ///
    /// # Errors
    /// [`Error::UnknownMethod`], [`Error::UnknownParameter`], [`Error::BadParameter`] or [`Error::NeedsModel`], and the
    /// errors of reading a model or embeddings file that a parameter names.
    pub fn parse(&self, text: &str) -> Result<NamedMethod> {
        let mut parts = method_parts(text.trim()).into_iter();
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
            let known = info.parameters.iter().find(|parameter| parameter.name == key);
            let name = known.ok_or_else(|| unknown_parameter(info, key))?.name;
            if let Some(first) = parameters.given.insert(key, value) {
                let given = format!("{first}:{name}={value}");
                return Err(Error::BadParameter {
                    method: info.name,
                    name,
                    given,
                    allowed: "to be given only once",
                });
            }
        }
        let label = label.unwrap_or_else(|| shortened(text.trim()));
        Ok(NamedMethod { label, method: (info.build)(&parameters)? })
    }

    /// Makes the methods of a list. An empty list stands for all methods that need no model file and are not
    /// transductive.
    ///
    /// # Errors
    /// [`Error::MethodTwice`] if two methods have the same label, and the errors of [`Registry::parse`].
    pub fn parse_all<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<NamedMethod>> {
        let mut methods: Vec<NamedMethod> = match names.is_empty() {
            true => {
                let defaults = self.infos.iter().filter(|info| info.is_default());
                defaults.map(|info| self.parse(info.name)).collect::<Result<_>>()?
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
        let nearest = nearest_name(name, &names);
        Error::UnknownMethod { name: name.into(), nearest, known: names.join(", ") }
    }
}

/// The text of a method with the paths of files reduced to the file name without extension, to fit into tables.
fn shortened(text: &str) -> String {
    let short = |part: &str| {
        let file = part.split_once('=').filter(|(key, _)| FILE_PARAMETERS.contains(key));
        match file.and_then(|(key, path)| Some((key, Path::new(path).file_stem()?))) {
            Some((key, stem)) => format!("{key}={}", stem.to_string_lossy()),
            None => part.to_string(),
        }
    };
    method_parts(text).into_iter().map(short).collect::<Vec<_>>().join(":")
}

/// The name of a method and its parameters (`KEY=VALUE`), which are separated by colons. A part without `=` after the
/// path of a file belongs to the path: it follows a colon of the path itself.
fn method_parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let ends = text.match_indices(':').map(|(colon, _)| colon).chain([text.len()]);
    for end in ends {
        let part = &text[start..end];
        // Whether the part begins with a parameter whose value can be a path.
        let is_path = part.split_once('=').is_some_and(|(key, _)| FILE_PARAMETERS.contains(&key));
        // The text up to the next colon; `None` at the end of the text.
        let next = text.get(end + 1..).and_then(|rest| rest.split(':').next());
        if !is_path || next.is_none_or(|next| next.contains('=')) {
            parts.push(part);
            start = end + 1;
        }
    }
    parts
}

fn unknown_parameter(info: &MethodInfo, name: &str) -> Error {
    let names: Vec<&str> = info.parameters.iter().map(|parameter| parameter.name).collect();
    let known = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let nearest = nearest_name(name, &names);
    Error::UnknownParameter { method: info.name, name: name.into(), nearest, known }
}

/// The known name most similar to a misspelt one, for "did you mean"; `None` if no name is similar.
///
/// The similarity is that of Jaro and Winkler, from 0 to 1, ignoring case. Names count as similar above 0.7.
pub(crate) fn nearest_name(name: &str, known: &[&str]) -> Option<String> {
    let lower = name.to_lowercase();
    let scored = known.iter().map(|known| (strsim::jaro_winkler(&lower, &known.to_lowercase()), known));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.7).then(|| best.1.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> Error {
        Registry::default().parse(text).err().expect("the text should be refused")
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
    fn transductive_methods_are_marked_and_not_used_by_default() {
        let registry = Registry::default();
        let mut transductive = Vec::new();
        for info in registry.infos().iter().filter(|info| info.is_complete()) {
            let method = registry.parse(info.name).unwrap();
            assert_eq!(method.method.is_transductive(), info.transductive, "{}", info.name);
            assert_eq!(method.check_not_transductive().is_err(), info.transductive, "{}", info.name);
            transductive.extend(info.transductive.then_some(info.name));
        }
        assert_eq!(transductive, ["laplacianshot", "tim", "bd-cspn", "pt-map"]);
        let defaults = registry.parse_all::<&str>(&[]).unwrap();
        assert!(defaults.iter().all(|method| !method.method.is_transductive()));
        assert!(defaults.iter().any(|method| method.label == "simpleshot"));
    }

    #[test]
    fn a_method_without_its_model_says_what_it_needs() {
        assert_eq!(parse_error("tranfs").to_string(), "method 'tranfs' needs a model: tranfs:model=FILE");
        assert!(parse_error("tranfs:model=nowhere.safetensors").to_string().contains("cannot read nowhere"));
        let message = parse_error(r"tranfs:model=C:\no:where.safetensors:as=b").to_string();
        assert!(message.contains(r"cannot read C:\no:where.safetensors:"), "{message}");
        let message = parse_error("median:steps=2:steps=3").to_string();
        assert_eq!(
            message,
            "method 'median': steps=2:steps=3 is not allowed; steps is to be given only once"
        );
    }

    #[test]
    fn labels_are_short_and_can_be_chosen() {
        assert_eq!(shortened("tranfs:model=a/b/sym.safetensors:orders=8"), "tranfs:model=sym:orders=8");
        assert_eq!(shortened("simpleshot:centre=a/train.npz"), "simpleshot:centre=train");
        assert_eq!(Registry::default().parse("cosine:T=0.5:as=warm").unwrap().label, "warm");
        assert_eq!(Registry::default().parse("cosine:T=0.5").unwrap().label, "cosine:T=0.5");
    }

    #[test]
    fn misspelt_names_get_a_hint_with_the_most_similar_name() {
        assert_eq!(parse_error("euclidian").hint().unwrap(), "did you mean 'euclidean'?");
        assert_eq!(parse_error("ProtoNet").hint().unwrap(), "did you mean 'protonet'?");
        assert_eq!(parse_error("median:step=3").hint().unwrap(), "did you mean 'steps'?");
        assert_eq!(parse_error("xyz").hint(), None);
        assert!(parse_error("protonet:T=3").to_string().ends_with("it has: none"));
    }

    #[test]
    fn values_out_of_range_say_what_is_allowed() {
        for text in
            ["cosine:T=0", "cosine:T=-1", "cosine:T=nan", "cosine:T=", "cosine:T=warm", "cosine:T=inf"]
        {
            assert!(parse_error(text).to_string().ends_with("T is a number above 0"), "{text}");
        }
        assert!(parse_error("baseline++:scale=100").to_string().ends_with("a number above 0 and at most 80"));
        assert!(parse_error("nearest:k=0").to_string().ends_with("a whole number from 1 to 1000000"));
        assert!(parse_error("median:hessian=half").to_string().contains("diagonal or full"));
    }
}
