//! Methods and noise types that are Python functions.
//!
//! The functions run on the thread that called `evaluate`, as Python code expects: Ctrl-C reaches them, and libraries
//! with their own threads work. The evaluation runs on other threads and sends its requests there ([`Message`]). While
//! a function processes one batch of episodes, the rows of the next batch are gathered.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rayon::prelude::*;
use trueshot::method::{Fitted, Method, RowClassifier, RowPrediction, RowTask};
use trueshot::noise::{CleanSupport, LabelNoise, NoisyLabels};
use trueshot::rng::Rng;
use trueshot::task::Task;
use trueshot::{Embeddings, Error};

/// The approximate size of the features of a batch of episodes, in bytes: small enough to stay in the cache of most
/// processors.
const BATCH_BYTES: usize = 16 << 20;

/// A message from the threads of an evaluation to the calling thread.
pub enum Message {
    /// The number of finished episodes.
    Done(u64),
    Classify(Batch),
    Relabel(LabelQuestion),
}

/// Episodes for a method. E episodes have N classes of up to K items, Q queries and features of dimension D.
pub struct Batch {
    /// The index of the method among the Python methods.
    method: usize,
    episodes: Vec<i64>,
    /// `[E, N, K, D]`, grouped by given label; zeros where a class has fewer than K items.
    support: Vec<f32>,
    /// `[E, N, K]`, the given label; -1 where a class has fewer than K items.
    labels: Vec<i64>,
    /// `[E, Q, D]`, sorted by class.
    queries: Vec<f32>,
    /// E, N, K, Q, D.
    shape: [usize; 5],
    answer: Sender<trueshot::Result<Predictions>>,
}

/// The result for a [`Batch`].
struct Predictions {
    /// `[E, Q]`.
    classes: Vec<i64>,
    /// `[E, N, K]`.
    p_wrong: Option<Vec<f32>>,
}

/// A request for the labels of one support set from a noise type.
pub struct LabelQuestion {
    /// The index of the noise type among the Python functions.
    noise: usize,
    episode: u64,
    labels: Vec<i64>,
    rows: Vec<i64>,
    classes: Vec<i64>,
    /// A seed for random numbers of this episode.
    seed: u64,
    answer: Sender<trueshot::Result<NoisyLabels>>,
}

/// A method of the Python package, described by its attributes.
#[derive(FromPyObject)]
pub struct UserMethod {
    name: String,
    transductive: bool,
    max_tasks: u64,
    /// Called with support `[E, N, K, D]`, labels `[E, N, K]`, queries `[E, Q, D]` and the numbers of the episodes; returns
    /// the classes `[E, Q]` as int64 and `[E, N, K]` as float32 or None, both flat.
    run: Py<PyAny>,
}

impl UserMethod {
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The Python functions of an evaluation.
pub struct UserFunctions {
    pub methods: Vec<UserMethod>,
    pub noises: Vec<Py<PyAny>>,
    /// Whether a method that fails ends the evaluation.
    pub stop_on_failure: bool,
}

impl UserFunctions {
    /// Answers a message by calling a function.
    ///
    /// # Errors
    /// The exception that ends the evaluation.
    pub fn answer(&self, py: Python<'_>, message: Message) -> PyResult<()> {
        match message {
            Message::Done(_) => Ok(()),
            Message::Classify(batch) => self.classify(py, batch),
            Message::Relabel(question) => self.relabel(py, question),
        }
    }

    fn classify(&self, py: Python<'_>, batch: Batch) -> PyResult<()> {
        let (method, answer) = (&self.methods[batch.method], batch.answer.clone());
        let error = match call_method(py, method, batch) {
            Ok(predictions) => {
                let _ = answer.send(Ok(predictions));
                return Ok(());
            }
            Err(error) => error,
        };
        // Ctrl-C and similar exceptions end the evaluation, not only the method.
        if !error.is_instance_of::<PyException>(py) {
            let _ = answer.send(Err(Error::Interrupted));
            return Err(error);
        }
        let value = error.value(py);
        let problem = value.getattr("problem").and_then(|problem| problem.extract::<String>());
        let failed = Error::MethodFailed {
            method: method.name.clone(),
            episode: value.getattr("episode").and_then(|episode| episode.extract()).unwrap_or(0),
            problem: problem.unwrap_or_else(|_| error.to_string()),
        };
        let _ = answer.send(Err(failed));
        if self.stop_on_failure { Err(error) } else { Ok(()) }
    }

    fn relabel(&self, py: Python<'_>, question: LabelQuestion) -> PyResult<()> {
        let answer = question.answer.clone();
        match call_noise(py, &self.noises[question.noise], question) {
            Ok(labels) => {
                let _ = answer.send(Ok(labels));
                Ok(())
            }
            Err(error) => {
                let _ = answer.send(Err(Error::Interrupted));
                Err(error)
            }
        }
    }
}

fn call_method(py: Python<'_>, method: &UserMethod, batch: Batch) -> PyResult<Predictions> {
    let [episodes, classes, items, queries, dim] = batch.shape;
    let support = PyArray1::from_vec(py, batch.support).reshape([episodes, classes, items, dim])?;
    let labels = PyArray1::from_vec(py, batch.labels).reshape([episodes, classes, items])?;
    let query_rows = PyArray1::from_vec(py, batch.queries).reshape([episodes, queries, dim])?;
    let numbers = PyArray1::from_vec(py, batch.episodes);
    let found = method.run.bind(py).call1((support, labels, query_rows, numbers))?;
    let (found, p_wrong): (PyReadonlyArray1<'_, i64>, Option<PyReadonlyArray1<'_, f32>>) = found.extract()?;
    let p_wrong = p_wrong.map(|p_wrong| p_wrong.as_slice().map(<[f32]>::to_vec)).transpose()?;
    Ok(Predictions { classes: found.as_slice()?.to_vec(), p_wrong })
}

fn call_noise(py: Python<'_>, function: &Py<PyAny>, question: LabelQuestion) -> PyResult<NoisyLabels> {
    let LabelQuestion { episode, labels, rows, classes, seed, .. } = question;
    let array = |values| PyArray1::from_vec(py, values);
    let arguments = (array(labels), array(rows), array(classes), episode, seed);
    let (given, outliers) = function.bind(py).call1(arguments)?.extract()?;
    Ok(NoisyLabels { given, outliers })
}

/// A method that is a Python function, for an evaluation of `data`.
pub struct PythonMethod {
    position: usize,
    name: String,
    transductive: bool,
    max_tasks: u64,
    data: Arc<Embeddings>,
    outliers: Option<Arc<Embeddings>>,
    sender: Sender<Message>,
}

impl PythonMethod {
    pub fn new(
        position: usize,
        method: &UserMethod,
        (data, outliers): (&Arc<Embeddings>, Option<&Arc<Embeddings>>),
        sender: Sender<Message>,
    ) -> Self {
        let UserMethod { name, transductive, max_tasks, .. } = method;
        PythonMethod {
            position,
            name: name.clone(),
            transductive: *transductive,
            max_tasks: *max_tasks,
            data: Arc::clone(data),
            outliers: outliers.map(Arc::clone),
            sender,
        }
    }

    /// The arrays of tasks, and the items of every task by class: `[N][items of the class]`.
    fn batch(&self, tasks: &[RowTask<'_>]) -> (Batch, Receiver<trueshot::Result<Predictions>>, Vec<Places>) {
        let places: Vec<Places> = tasks.iter().map(places).collect();
        let dim = self.data.dim();
        let classes = tasks.first().map_or(0, |task| task.classes.len());
        let items = places.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let queries = tasks.first().map_or(0, |task| task.queries().count());
        let mut labels = vec![-1; tasks.len() * classes * items];
        for (labels, places) in labels.chunks_mut((classes * items).max(1)).zip(&places) {
            for (class, members) in places.iter().enumerate() {
                labels[class * items..][..members.len()].fill(class as i64);
            }
        }
        let mut support = vec![0.0; tasks.len() * classes * items * dim];
        let rows = support.par_chunks_mut(classes * items * dim).zip(tasks).zip(&places);
        rows.for_each(|((rows, task), places)| self.fill_support(rows, task, places, items));
        let mut query_rows = vec![0.0; tasks.len() * queries * dim];
        let rows = query_rows.par_chunks_mut((queries * dim).max(1)).zip(tasks);
        rows.for_each(|(rows, task)| {
            let features = self.data.features();
            rows.chunks_mut(dim)
                .zip(task.queries())
                .for_each(|(out, row)| features.decode_row(row as usize, out));
        });
        let (answer, receiver) = channel();
        let batch = Batch {
            method: self.position,
            episodes: tasks.iter().map(|task| task.episode as i64).collect(),
            support,
            labels,
            queries: query_rows,
            shape: [tasks.len(), classes, items, queries, dim],
            answer,
        };
        (batch, receiver, places)
    }

    fn fill_support(&self, rows: &mut [f32], task: &RowTask<'_>, places: &Places, items: usize) {
        let dim = self.data.dim();
        for (class, members) in places.iter().enumerate() {
            let outs = rows[class * items * dim..].chunks_mut(dim);
            for (out, &item) in outs.zip(members) {
                let item = &task.support[item];
                let outliers = self.outliers.as_ref().filter(|_| item.truth.is_none());
                outliers.unwrap_or(&self.data).features().decode_row(item.row as usize, out);
            }
        }
    }
}

/// For every class the items with its given label, as indices into the support set.
type Places = Vec<Vec<usize>>;

fn places(task: &RowTask<'_>) -> Places {
    let mut places = vec![Vec::new(); task.classes.len()];
    task.support.iter().enumerate().for_each(|(item, found)| places[found.given as usize].push(item));
    places
}

impl Method for PythonMethod {
    fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> trueshot::Result<Fitted> {
        unreachable!("an evaluation calls the row classifier")
    }

    fn is_transductive(&self) -> bool {
        self.transductive
    }

    fn row_classifier(&self) -> Option<&dyn RowClassifier> {
        Some(self)
    }
}

impl RowClassifier for PythonMethod {
    fn classify(&self, tasks: &[RowTask<'_>]) -> trueshot::Result<Vec<RowPrediction>> {
        let largest = tasks.iter().map(|task| task.support.len() + task.queries().count()).max().unwrap_or(0);
        let episode_bytes = (largest * self.data.dim() * size_of::<f32>()).max(1);
        let mut chunks = tasks.chunks((BATCH_BYTES / episode_bytes).max(1));
        let mut next = chunks.next().map(|tasks| (tasks, self.batch(tasks)));
        let mut found = Vec::with_capacity(tasks.len());
        while let Some((tasks, (batch, receiver, places))) = next {
            let items = batch.shape[2];
            let queries = batch.shape[3];
            // If the receiver is gone or wants to stop, there is no answer.
            let _ = self.sender.send(Message::Classify(batch));
            next = chunks.next().map(|tasks| (tasks, self.batch(tasks)));
            let predictions = receiver.recv().unwrap_or(Err(Error::Interrupted))?;
            let is_complete = predictions.classes.len() == tasks.len() * queries;
            let failed = |task: &RowTask<'_>, problem: &str| Error::MethodFailed {
                method: self.name.clone(),
                episode: task.episode,
                problem: problem.into(),
            };
            if !is_complete {
                return Err(failed(&tasks[0], "it gave another number of predictions than queries"));
            }
            for (index, (task, places)) in tasks.iter().zip(&places).enumerate() {
                let classes = predictions.classes[index * queries..][..queries].iter();
                let is_class = |class: &u32| (*class as usize) < task.classes.len();
                let classes = classes.map(|&class| u32::try_from(class).ok().filter(is_class));
                let classes = classes.collect::<Option<Vec<u32>>>();
                let classes =
                    classes.ok_or_else(|| failed(task, "it predicted a class that is not there"))?;
                let per_episode = task.classes.len() * items;
                let p_wrong = predictions.p_wrong.as_ref().and_then(|all| {
                    in_order_of_items(places, all.get(index * per_episode..(index + 1) * per_episode)?, items)
                });
                found.push(RowPrediction { classes, p_wrong });
            }
        }
        Ok(found)
    }

    fn max_tasks(&self) -> u64 {
        self.max_tasks
    }
}

/// Values `[N, K]` in the order of the items of the support set.
fn in_order_of_items(places: &Places, values: &[f32], items: usize) -> Option<Vec<f32>> {
    let mut ordered = vec![0.0; places.iter().map(Vec::len).sum()];
    for (class, members) in places.iter().enumerate() {
        for (position, &item) in members.iter().enumerate() {
            *ordered.get_mut(item)? = values[class * items + position];
        }
    }
    Some(ordered)
}

/// A noise type that is a Python function.
pub struct PythonNoise {
    pub position: usize,
    pub name: String,
    pub sender: Sender<Message>,
}

impl LabelNoise for PythonNoise {
    fn name(&self) -> &str {
        &self.name
    }

    fn relabel(&self, support: &CleanSupport<'_>, rng: &mut Rng) -> trueshot::Result<NoisyLabels> {
        let (answer, receiver) = channel();
        let whole = |values: &[u32]| values.iter().map(|&value| i64::from(value)).collect();
        let question = LabelQuestion {
            noise: self.position,
            episode: support.episode.index,
            labels: whole(&support.labels),
            rows: whole(&support.rows),
            classes: support.episode.classes.iter().map(|draw| i64::from(draw.class)).collect(),
            seed: rng.number(),
            answer,
        };
        let _ = self.sender.send(Message::Relabel(question));
        receiver.recv().unwrap_or(Err(Error::Interrupted))
    }

    /// Functions may have state, for instance a random generator.
    fn is_sequential(&self) -> bool {
        true
    }
}
