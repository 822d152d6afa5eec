//! Tests of ONNX models as backbones: their embeddings, and which models are refused.

mod tiny_onnx;

use std::io::Cursor;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use proptest::prelude::*;
use tiny_onnx::{
    BFLOAT16, BOOL, DOUBLE, FLOAT, Graph, HALF, INT64, external_tensor, int, ints, means, node, tensor, value,
};
use trueshot_vision::backbone::BackboneOptions;
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::onnx::{self, ModelProcess};
use trueshot_vision::{Backbone, Embedder};

/// This test binary is its own worker.
#[test]
#[ignore = "not a test: the worker process that the tests start"]
fn onnx_worker() {
    std::process::exit(onnx::serve().into());
}

/// Makes this binary the worker, with limits that are small enough to be reached quickly.
fn set_up_worker() {
    let arguments = ["onnx_worker", "--exact", "--ignored", "--nocapture"];
    let process = ModelProcess::new(std::env::current_exe().unwrap(), arguments);
    onnx::run_models_in(ModelProcess { memory: 1 << 30, seconds: 3, ..process });
}

fn from_bytes(bytes: Vec<u8>, options: &BackboneOptions) -> trueshot_vision::Result<Backbone> {
    set_up_worker();
    Backbone::from_onnx(bytes, "x.onnx", options)
}

/// The fuzzer starts from the tiny models, which are stored as files.
#[test]
fn the_files_that_fuzzing_starts_from_are_those_of_these_tests() {
    for (name, sides) in [("first", ["N", "3", "H", "W"]), ("fixed", ["1", "3", "9", "9"])] {
        let path = Path::new("tests/models").join(format!("{name}.onnx"));
        let file = means(&sides).file();
        if std::env::var_os("TRUESHOT_WRITE").is_some() {
            std::fs::write(&path, &file).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == file,
            "{}: TRUESHOT_WRITE=1 writes it again",
            path.display()
        );
    }
}

/// Values from 0 to 1 without normalisation, so that a mean is visible in the result.
fn plain() -> BackboneOptions {
    BackboneOptions { mean: Some(vec![0.0; 3]), std: Some(vec![1.0; 3]), ..BackboneOptions::default() }
}

fn opened(graph: &Graph, options: &BackboneOptions) -> Result<Backbone, String> {
    set_up_worker();
    let backbone = Backbone::from_onnx(graph.file(), "tiny.onnx", options);
    backbone.map_err(|error| format!("{error} {}", error.hint().unwrap_or_default()))
}

/// An image of one colour, as a file.
fn png(colour: [u8; 3]) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    RgbImage::from_pixel(10, 7, Rgb(colour)).write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

fn row(backbone: Backbone, colour: [u8; 3]) -> Vec<f32> {
    let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
    embedder.embed_bytes(&[png(colour)]).unwrap().remove(0).unwrap()
}

fn close(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn channels_may_be_first_or_last_and_sizes_fixed_or_dynamic() {
    let expected = [1.0, 0.2, 0.0];
    let first = opened(&means(&["N", "3", "H", "W"]), &plain()).unwrap();
    assert_eq!((first.preprocessing().size, first.dim()), (224, 3));
    assert!(close(&row(first, [255, 51, 0]), &expected));
    let fixed = opened(&means(&["1", "3", "9", "9"]), &plain()).unwrap();
    assert_eq!(fixed.preprocessing().size, 9);
    assert!(close(&row(fixed, [255, 51, 0]), &expected));
    let mut last = means(&["N", "12", "12", "3"]);
    last.nodes =
        vec![node("ReduceMean", &["input"], "features", &[ints("axes", &[1, 2]), int("keepdims", 0)])];
    let last = opened(&last, &plain()).unwrap();
    assert_eq!(last.preprocessing().size, 12);
    assert!(close(&row(last, [255, 51, 0]), &expected));
    let sized = BackboneOptions { size: Some(40), ..plain() };
    assert_eq!(opened(&means(&["N", "3", "H", "W"]), &sized).unwrap().preprocessing().size, 40);
}

#[test]
fn without_options_colours_are_normalised_as_for_imagenet() {
    let backbone = opened(&means(&["N", "3", "8", "8"]), &BackboneOptions::default()).unwrap();
    let expected = [(1.0 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225];
    assert!(close(&row(backbone, [255, 0, 0]), &expected));
}

#[test]
fn feature_maps_are_averaged_and_of_tokens_the_first_is_taken() {
    let mut planes = means(&["N", "3", "8", "8"]);
    planes.nodes = vec![node("Relu", &["input"], "features", &[])];
    planes.outputs = vec![value("features", FLOAT, &["N", "3", "8", "8"])];
    assert!(close(&row(opened(&planes, &plain()).unwrap(), [255, 51, 0]), &[1.0, 0.2, 0.0]));
    let mut tokens = means(&["N", "3", "2", "2"]);
    let shape: Vec<u8> = [1_i64, 6, 2].iter().flat_map(|side| side.to_le_bytes()).collect();
    tokens.tensors = vec![tensor("shape", INT64, &[3], &shape)];
    tokens.nodes = vec![node("Reshape", &["input", "shape"], "features", &[])];
    tokens.outputs = vec![value("features", FLOAT, &["1", "6", "2"])];
    assert!(close(&row(opened(&tokens, &plain()).unwrap(), [255, 51, 0]), &[1.0, 1.0]));
}

#[test]
fn an_output_is_chosen_by_name_or_the_first_that_is_a_row() {
    let mut both = means(&["N", "3", "8", "8"]);
    both.outputs = vec![value("pooled", FLOAT, &["N", "3", "1", "1"]), value("features", FLOAT, &["N", "3"])];
    assert!(opened(&both, &plain()).unwrap().name().contains("output 'features'"));
    let pooled = BackboneOptions { output: Some("pooled".into()), ..plain() };
    assert!(opened(&both, &pooled).unwrap().name().contains("output 'pooled'"));
    let missing = BackboneOptions { output: Some("embedding".into()), ..plain() };
    let problem = opened(&both, &missing).err().unwrap();
    assert!(problem.contains("no output 'embedding'; it has pooled, features"), "{problem}");
}

#[test]
fn an_output_of_class_scores_is_allowed_with_a_warning() {
    let mut classes = means(&["N", "3", "8", "8"]);
    classes.nodes[1] = node("Flatten", &["pooled"], "logits", &[]);
    classes.outputs = vec![value("logits", FLOAT, &["N", "3"])];
    assert!(opened(&classes, &plain()).unwrap().warning().unwrap().contains("'logits'"));
    assert_eq!(opened(&means(&["N", "3", "8", "8"]), &plain()).unwrap().warning(), None);
}

#[test]
fn inputs_that_are_not_images_are_refused_with_their_shape() {
    let refused = |sides: &[&str], part: &str| {
        let problem =
            opened(&means(sides), &BackboneOptions::default()).err().unwrap_or_else(|| panic!("{sides:?}"));
        assert!(problem.contains(part), "{sides:?}: {problem}");
    };
    refused(&["N", "3"], "[N, 3]; an image model's has four axes");
    refused(&["8", "3", "9", "9"], "a fixed batch size of 8");
    refused(&["N", "7", "9", "9"], "no axis of 1 or 3 channels");
    refused(&["N", "3", "9", "12"], "only square inputs are supported");
    refused(&["N", "3", "0", "0"], "1 to 2048 px");
    refused(&["N", "3", "100000", "100000"], "1 to 2048 px");
    let mut two = means(&["N", "3", "9", "9"]);
    two.inputs.push(value("other", FLOAT, &["N"]));
    assert!(opened(&two, &BackboneOptions::default()).err().unwrap().contains("2 inputs"));
    let mut whole = means(&["N", "3", "9", "9"]);
    whole.inputs = vec![value("input", INT64, &["N", "3", "9", "9"])];
    assert!(opened(&whole, &BackboneOptions::default()).err().unwrap().contains("32-bit floats"));
    let fixed = BackboneOptions { size: Some(10), ..BackboneOptions::default() };
    assert!(opened(&means(&["N", "3", "9", "9"]), &fixed).err().unwrap().contains("its size is fixed"));
    let three = BackboneOptions { mean: Some(vec![0.0; 2]), ..BackboneOptions::default() };
    assert!(opened(&means(&["N", "3", "9", "9"]), &three).err().unwrap().contains("3 finite numbers"));
}

#[test]
fn outputs_that_are_not_features_are_refused() {
    let refused = |nodes: Vec<Vec<u8>>, kind: i64, parts: &[&str]| {
        let mut graph = means(&["N", "3", "9", "9"]);
        (graph.nodes, graph.outputs) = (nodes, vec![value("features", kind, &["N", "C"])]);
        let problem =
            opened(&graph, &BackboneOptions::default()).err().unwrap_or_else(|| panic!("{parts:?}"));
        assert!(parts.iter().any(|part| problem.contains(part)), "{problem}");
    };
    let pooled = || node("GlobalAveragePool", &["input"], "pooled", &[]);
    let flat = || node("Flatten", &["pooled"], "flat", &[]);
    refused(vec![pooled(), flat(), node("ArgMax", &["flat"], "features", &[])], INT64, &["type"]);
    refused(vec![node("Flatten", &["input"], "features", &[int("axis", 3)])], FLOAT, &["first axis"]);
    refused(vec![node("NoSuchOperator", &["input"], "features", &[])], FLOAT, &["NoSuchOperator"]);
}

#[test]
fn doubles_are_taken_as_floats_or_refused_but_never_misread() {
    let mut graph = means(&["N", "3", "9", "9"]);
    graph.nodes[1] = node("Flatten", &["pooled"], "flat", &[]);
    graph.nodes.push(node("Cast", &["flat"], "features", &[int("to", DOUBLE)]));
    graph.outputs = vec![value("features", DOUBLE, &["N", "3"])];
    match opened(&graph, &plain()) {
        Ok(backbone) => assert!(close(&row(backbone, [255, 51, 0]), &[1.0, 0.2, 0.0])),
        Err(problem) => assert!(problem.contains("cannot be used"), "{problem}"),
    }
}

/// A model of the channel means times 2, 0.5 and 4, which are a tensor of the model; all values have type `kind`.
fn scaled_means(kind: i64, factors: Vec<u8>) -> Graph {
    let mut graph = means(&["N", "3", "9", "9"]);
    graph.inputs = vec![value("input", kind, &["N", "3", "9", "9"])];
    graph.outputs = vec![value("features", kind, &["N", "3"])];
    graph.nodes[1] = node("Flatten", &["pooled"], "flat", &[]);
    graph.nodes.push(node("Mul", &["flat", "factors"], "features", &[]));
    graph.tensors = vec![factors];
    graph
}

/// 2, 0.5 and 4 as 16-bit and as 32-bit floats.
const HALF_FACTORS: [u16; 3] = [0x4000, 0x3800, 0x4400];
const FACTORS: [f32; 3] = [2.0, 0.5, 4.0];

fn half_bytes() -> Vec<u8> {
    HALF_FACTORS.iter().flat_map(|factor| factor.to_le_bytes()).collect()
}

#[test]
fn weights_inputs_and_outputs_may_be_16_bit_floats() {
    let listed: Vec<u8> =
        HALF_FACTORS.iter().flat_map(|factor| tiny_onnx::varint((*factor).into())).collect();
    let listed = [
        tiny_onnx::integer(1, 3),
        tiny_onnx::integer(2, HALF),
        tiny_onnx::bytes(5, listed),
        tiny_onnx::bytes(8, "factors"),
    ];
    // The numbers start at even and at odd offsets of the file.
    let mut before = scaled_means(HALF, tensor("factors", HALF, &[3], &half_bytes()));
    before.tensors.insert(0, tensor("x", HALF, &[1], &[0, 0]));
    let mut odd = scaled_means(HALF, tensor("factors", HALF, &[3], &half_bytes()));
    odd.tensors.insert(0, tensor("xy", HALF, &[1], &[0, 0]));
    for graph in [before, odd, scaled_means(HALF, listed.concat())] {
        let backbone = opened(&graph, &plain()).unwrap();
        assert!(close(&row(backbone, [255, 51, 0]), &[2.0, 0.1, 0.0]));
    }
    let mut mixed = scaled_means(FLOAT, tensor("factors", HALF, &[3], &half_bytes()));
    mixed.nodes[1] = node("Flatten", &["pooled"], "single", &[]);
    mixed.nodes.insert(2, node("Cast", &["single"], "flat", &[int("to", HALF)]));
    mixed.nodes[3] = node("Mul", &["flat", "factors"], "half", &[]);
    mixed.nodes.push(node("Cast", &["half"], "features", &[int("to", FLOAT)]));
    assert!(close(&row(opened(&mixed, &plain()).unwrap(), [255, 51, 0]), &[2.0, 0.1, 0.0]));
}

#[test]
fn bfloat16_is_refused_with_advice() {
    let problem = opened(&scaled_means(FLOAT, tensor("factors", BFLOAT16, &[3], &[0; 6])), &plain());
    let problem = problem.err().unwrap();
    assert!(problem.contains("'factors' is of type bfloat16"), "{problem}");
    assert!(problem.contains("f32 or f16 (model.float())"), "{problem}");
}

/// Opens a model file next to a file of weights: two unused bytes, then the factors.
fn opened_beside_weights(kind: i64, entries: &[(&str, &str)]) -> Result<Backbone, String> {
    let folder = tempfile::tempdir().unwrap();
    let (path, weights) = (folder.path().join("tiny.onnx"), folder.path().join("weights/tiny.bin"));
    let factors = match kind {
        HALF => half_bytes(),
        _ => FACTORS.iter().flat_map(|factor| factor.to_le_bytes()).collect(),
    };
    std::fs::create_dir(folder.path().join("weights")).unwrap();
    std::fs::write(weights, [vec![7, 7], factors].concat()).unwrap();
    std::fs::write(&path, scaled_means(kind, external_tensor("factors", kind, &[3], entries)).file())
        .unwrap();
    set_up_worker();
    let backbone = Backbone::find(&path, &plain());
    backbone.map_err(|error| format!("{error} {}", error.hint().unwrap_or_default()))
}

#[test]
fn weights_in_a_file_next_to_the_model_are_read() {
    let inside = scaled_means(HALF, tensor("factors", HALF, &[3], &half_bytes()));
    let hash_of = |name: &str| name.split(", ").nth(3).unwrap().trim_end_matches(')').to_owned();
    let inside = hash_of(opened(&inside, &plain()).unwrap().name());
    for (kind, length) in [(FLOAT, Some("12")), (HALF, Some("6")), (HALF, None)] {
        let mut entries = vec![("location", "weights/tiny.bin"), ("offset", "2")];
        entries.extend(length.map(|length| ("length", length)));
        let backbone = opened_beside_weights(kind, &entries).unwrap();
        // The weights are part of the model, so its name contains a hash of them.
        assert_eq!(hash_of(backbone.name()) == inside, kind == HALF);
        assert!(close(&row(backbone, [255, 51, 0]), &[2.0, 0.1, 0.0]));
    }
}

#[test]
fn weights_elsewhere_or_of_another_size_are_refused() {
    let refused = |entries: &[(&str, &str)], part: &str| {
        let problem = opened_beside_weights(FLOAT, entries).err().unwrap_or_else(|| panic!("{entries:?}"));
        assert!(problem.contains(part), "{entries:?}: {problem}");
        problem
    };
    let problem = refused(&[("location", "nowhere.bin")], "its weights are in 'nowhere.bin' next to it");
    assert!(problem.contains("onnx.save(onnx.load("), "{problem}");
    refused(&[("location", "weights")], "not a file");
    for outside in ["../tiny.bin", "/etc/passwd", "weights/../../x", ""] {
        refused(&[("location", outside)], "not in the folder of the model");
    }
    let location = ("location", "weights/tiny.bin");
    refused(
        &[location, ("offset", "2"), ("length", "13")],
        "13 bytes from byte 2 of 'weights/tiny.bin', which has 14",
    );
    refused(&[location, ("offset", "18446744073709551615"), ("length", "2")], "which has 14 bytes");
    refused(&[location, ("offset", "2"), ("length", "8")], "claims 3 numbers that it does not hold");
    refused(&[location, ("offset", "two")], "the offset of its tensor 'factors' is not a number");
    refused(&[("offset", "2")], "in another file, which was not given");
}

#[test]
fn claims_that_exceed_the_file_or_the_limits_are_refused() {
    let with = |tensors: Vec<Vec<u8>>| {
        let mut graph = means(&["N", "3", "9", "9"]);
        graph.tensors = tensors;
        opened(&graph, &BackboneOptions::default()).err().unwrap_or_default()
    };
    assert!(with(vec![tensor("w", FLOAT, &[1 << 20, 1 << 20], &[0; 16])]).contains("does not hold"));
    assert!(with(vec![tensor("w", FLOAT, &[1 << 40, 1 << 40], &[0; 16])]).contains("too many numbers"));
    assert!(with(vec![tensor("w", 99, &[4], &[0; 16])]).contains("unknown type"));
    let elsewhere = [tensor("w", FLOAT, &[4], &[]), tiny_onnx::integer(14, 1)].concat();
    assert!(with(vec![elsewhere]).contains("another file"));
    let huge: Vec<u8> = [1_i64 << 20, 1 << 20].iter().flat_map(|side| side.to_le_bytes()).collect();
    let mut graph = means(&["N", "3", "9", "9"]);
    graph.tensors = vec![tensor("shape", INT64, &[2], &huge)];
    graph.nodes.push(node("ConstantOfShape", &["shape"], "filled", &[]));
    assert!(opened(&graph, &BackboneOptions::default()).err().unwrap().contains("asks for"));
    let mut padded = means(&["N", "3", "9", "9"]);
    let pads = [ints("kernel_shape", &[2, 2]), ints("pads", &[1 << 30; 4])];
    padded.nodes.insert(0, node("MaxPool", &["input"], "unused", &pads));
    assert!(opened(&padded, &BackboneOptions::default()).err().unwrap().contains("pads"));
}

#[test]
fn files_that_are_not_onnx_are_refused() {
    for bytes in [&b""[..], b"not a model", b"\x89PNG\r\n\x1a\n", &[0xff; 64]] {
        let error = from_bytes(bytes.to_vec(), &BackboneOptions::default()).err().unwrap();
        assert!(
            error.to_string().contains("x.onnx cannot be used as a backbone: it is not an ONNX file"),
            "{error}"
        );
    }
    let whole = means(&["N", "3", "9", "9"]).file();
    for length in 0..whole.len() {
        assert!(from_bytes(whole[..length].to_vec(), &BackboneOptions::default()).is_err(), "{length}");
    }
}

#[test]
fn the_toml_file_next_to_a_model_is_used_and_options_take_precedence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.onnx");
    std::fs::write(&path, means(&["N", "3", "H", "W"]).file()).unwrap();
    let beside = |text: &str| std::fs::write(folder.path().join("tiny.toml"), text).unwrap();
    beside("size = 30\nmean = [0.0, 0.0, 0.0]\nstd = [1, 1, 1]\nresampling = \"bicubic\"\nfit = \"crop\"\n");
    set_up_worker();
    let open = |options: &BackboneOptions| Backbone::find(&path, options);
    let found = open(&BackboneOptions::default()).unwrap();
    assert_eq!(found.preprocessing().size, 30);
    assert!(close(&row(found, [255, 51, 0]), &[1.0, 0.2, 0.0]));
    assert_eq!(open(&BackboneOptions { size: Some(50), ..plain() }).unwrap().preprocessing().size, 50);
    beside("colour = 3\n");
    let error = open(&plain()).err().unwrap();
    assert!(error.to_string().contains("tiny.toml") && error.to_string().contains("colour"), "{error}");
    assert!(error.hint().unwrap().contains("resampling"));
    assert!(
        Backbone::find(Path::new("nowhere.onnx"), &plain())
            .err()
            .unwrap()
            .to_string()
            .contains("nowhere.onnx")
    );
}

#[test]
fn models_have_different_names_and_each_gives_the_same_rows_on_any_number_of_threads() {
    let (one, other) = (means(&["N", "3", "8", "8"]), means(&["N", "3", "9", "9"]));
    let name = |graph: &Graph| opened(graph, &plain()).unwrap().name().to_owned();
    assert_ne!(name(&one), name(&other));
    assert!(name(&one).starts_with("tiny (onnx, 8 px"));
    // Options that change the embeddings are part of the name.
    let usual = opened(&one, &BackboneOptions::default()).unwrap().name().to_owned();
    let changed = format!("{}, mean 0,0,0, std 1,1,1)", usual.strip_suffix(')').unwrap());
    assert_eq!(name(&one), changed);
    let files: Vec<Vec<u8>> = (0..40).map(|shade| png([shade, 2 * shade, 255 - shade])).collect();
    let rows = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let embedder = Embedder::new(opened(&one, &plain()).unwrap(), &CacheLocation::Disabled);
        pool.install(|| embedder.embed_bytes(&files).unwrap())
    };
    assert_eq!(rows(1), rows(4));
}

/// A model whose features are those of [`means`] plus a value `more` that these nodes compute.
fn with_more(tensors: Vec<Vec<u8>>, nodes: Vec<Vec<u8>>) -> Graph {
    let mut graph = means(&["N", "3", "9", "9"]);
    graph.tensors = tensors;
    graph.nodes[1] = node("Flatten", &["pooled"], "flat", &[]);
    graph.nodes.extend(nodes);
    graph.nodes.push(node("ReduceMax", &["more"], "one", &[int("keepdims", 0)]));
    graph.nodes.push(node("Add", &["flat", "one"], "features", &[]));
    graph
}

fn floats(name: &str, values: &[f32]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, FLOAT, &[values.len() as i64], &raw)
}

fn integers(name: &str, values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, INT64, &[values.len() as i64], &raw)
}

fn scalar(name: &str, value: f32) -> Vec<u8> {
    tensor(name, FLOAT, &[], &value.to_le_bytes())
}

/// A shape of 110 GB that is the product of two constants and not itself in the file.
fn huge() -> (Vec<Vec<u8>>, Vec<u8>) {
    let factors = vec![integers("a", &[400, 400]), integers("b", &[415, 415])];
    (factors, node("Mul", &["a", "b"], "huge", &[]))
}

#[test]
fn a_small_model_that_asks_for_gigabytes_is_refused_by_the_memory_limit() {
    let refused = |what: &str, tensors: Vec<Vec<u8>>, nodes: Vec<Vec<u8>>| {
        let (factors, product) = huge();
        let graph = with_more([factors, tensors].concat(), [vec![product], nodes].concat());
        let problem = opened(&graph, &plain()).err().unwrap_or_else(|| panic!("{what} is not refused"));
        assert!(
            problem.contains("more than 1 GiB of memory to be loaded or to embed one image"),
            "{what}: {problem}"
        );
    };
    let one = || vec![tensor("1", FLOAT, &[1, 1], &1_f32.to_le_bytes())];
    refused("ConstantOfShape", vec![], vec![node("ConstantOfShape", &["huge"], "more", &[])]);
    refused("Expand", one(), vec![node("Expand", &["1", "huge"], "more", &[])]);
    refused("Tile", one(), vec![node("Tile", &["1", "huge"], "more", &[])]);
    let range = vec![scalar("from", 0.0), scalar("to", 3e10), scalar("step", 1.0)];
    refused("Range", range, vec![node("Range", &["from", "to", "step"], "more", &[])]);
    // Not constant, so not evaluated during loading: the shape depends on the image.
    let shaped = vec![
        node("Shape", &["input"], "shape", &[]),
        node("Mul", &["shape", "thousand"], "larger", &[]),
        node("ConstantOfShape", &["larger"], "more", &[]),
    ];
    refused("a shape of the image", vec![integers("thousand", &[1000])], shaped);
}

#[test]
fn a_chain_of_8000_nodes_is_run_and_one_of_200000_is_refused() {
    let chain = |length: usize| {
        let names: Vec<String> = (0..=length).map(|number| format!("v{number}")).collect();
        let links = names.windows(2).map(|pair| node("Relu", &[&pair[0]], &pair[1], &[]));
        let mut graph = means(&["N", "3", "9", "9"]);
        graph.nodes[1] = node("Flatten", &["pooled"], "v0", &[]);
        graph.nodes.extend(links);
        graph.nodes.push(node("Relu", &[&names[length]], "features", &[]));
        graph
    };
    assert!(close(&row(opened(&chain(8_000), &plain()).unwrap(), [255, 51, 0]), &[1.0, 0.2, 0.0]));
    let problem = opened(&chain(200_000), &plain()).err().unwrap();
    assert!(problem.contains("more than 100000 nodes"), "{problem}");
}

#[test]
fn the_deepest_graph_that_the_file_check_allows_does_not_overflow_the_stack() {
    let names: Vec<String> = (0..99_000).map(|number| number.to_string()).collect();
    let mut graph = means(&["N", "3", "9", "9"]);
    graph.nodes[1] = node("Flatten", &["pooled"], "0", &[]);
    graph.nodes.extend(names.windows(2).map(|pair| node("Relu", &[&pair[0]], &pair[1], &[])));
    graph.outputs = vec![value("98999", FLOAT, &["N", "C"])];
    // Loading may time out or succeed, but must not overflow the stack of the worker.
    if let Err(problem) = opened(&graph, &plain()) {
        assert!(problem.contains("processor time"), "{problem}");
    }
}

fn body(graph: &Graph) -> Vec<u8> {
    [tiny_onnx::bytes(1, "body"), tiny_onnx::bytes(6, graph.message()), tiny_onnx::integer(20, 5)].concat()
}

#[test]
fn a_computation_without_end_is_refused_by_the_time_limit() {
    let refused = |what: &str, graph: &Graph| {
        let problem = opened(graph, &plain()).err().unwrap_or_else(|| panic!("{what} is not refused"));
        assert!(
            problem.contains("more than 3 s of processor time to be loaded or to embed one image"),
            "{what}: {problem}"
        );
    };
    let step = Graph {
        nodes: vec![node("Identity", &["going"], "goes", &[]), node("Relu", &["state"], "next", &[])],
        inputs: vec![value("n", INT64, &[]), value("going", BOOL, &[]), value("state", FLOAT, &["1", "3"])],
        outputs: vec![value("goes", BOOL, &[]), value("next", FLOAT, &["1", "3"])],
        ..Graph::default()
    };
    let mut endless = means(&["N", "3", "9", "9"]);
    endless.nodes[1] = node("Flatten", &["pooled"], "flat", &[]);
    endless.tensors =
        vec![tensor("times", INT64, &[], &i64::MAX.to_le_bytes()), tensor("yes", BOOL, &[], &[1])];
    endless.nodes.push(node("Loop", &["times", "yes", "flat"], "features", &[body(&step)]));
    refused("Loop", &endless);
    let side = vec![floats("1", &[1.0]), integers("side", &[3000, 3000])];
    let names: Vec<String> = (0..100).map(|number| format!("m{number}")).collect();
    let mut nodes = vec![node("Expand", &["1", "side"], "m0", &[])];
    nodes.extend(names.windows(2).map(|pair| node("MatMul", &[&pair[0], &pair[0]], &pair[1], &[])));
    nodes.push(node("Identity", &["m99"], "more", &[]));
    refused("MatMul", &with_more(side, nodes));
}

#[test]
fn only_the_image_that_ends_the_worker_fails() {
    // The brighter the red, the larger the array that the model allocates.
    let (size, zero) = (floats("size", &[3e10]), integers("zero", &[0]));
    let nodes = vec![
        node("ReduceMax", &["input"], "brightest", &[int("keepdims", 0)]),
        node("Mul", &["brightest", "size"], "wanted", &[]),
        node("Cast", &["wanted"], "shape", &[int("to", INT64)]),
        node("ConstantOfShape", &["shape"], "zeros", &[]),
        node("Concat", &["zeros", "none"], "more", &[int("axis", 0)]),
    ];
    let graph = with_more(vec![size, zero, floats("none", &[0.0])], nodes);
    let embedder = Embedder::new(opened(&graph, &plain()).unwrap(), &CacheLocation::Disabled);
    let files: Vec<Vec<u8>> = (0..24).map(|number| png([u8::from(number % 8 == 5) * 200, 0, 0])).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    let rows = pool.install(|| embedder.embed_bytes(&files).unwrap());
    for (number, row) in rows.iter().enumerate() {
        match row {
            Ok(row) => assert!(number % 8 != 5 && close(row, &[0.0; 3]), "{number}: {row:?}"),
            Err(problem) => {
                assert!(
                    number % 8 == 5 && problem.to_string().contains("1 GiB of memory"),
                    "{number}: {problem}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_models_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = means(&["N", "3", "9", "9"]).file();
        for (index, value) in changes {
            let position = index.index(bytes.len());
            bytes[position] = value;
        }
        let options = BackboneOptions { size: Some(9), ..plain() };
        if let Ok(backbone) = from_bytes(bytes, &options) {
            prop_assert!(backbone.dim() > 0);
        }
    }
}
