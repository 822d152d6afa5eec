//! Export of a classifier with its backbone as one ONNX model ([`onnx_model`]), for programs that predict without
//! trueshot, or of a backbone alone as a file for web pages ([`network_file`]). `trueshot export` calls them.
//!
//! The input of the model is decoded and resized pixels, as bytes: normalisation is part of the model. Conv4 and
//! EfficientNet-Lite0 are written as their layers. An ONNX backbone is copied, and its input and output are connected
//! to the normalisation and to the classifier.

use serde_json::json;
use trueshot::model;
use trueshot::onnx_graph::{Attribute, Axis, ElementType, GraphValue, OnnxGraph};
use trueshot::predictor::{OutputNames, Predictor};
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::{conv4, efficientnet};

use crate::backbone::{
    Backbone, CONV4_ARCHITECTURE, EFFICIENTNET_ARCHITECTURE, Parameters, write_preprocessing_notes,
};
use crate::decoded_image::Channels;
use crate::error::{Error, Result};
use crate::preprocess::Preprocessing;

/// The name of the input and of the graph.
const INPUT: &str = "image";

/// The classifier with its backbone as an ONNX model. Its input is `[batch, rows, columns, channels]` in bytes; the
/// metadata entry `preprocessing` describes how to make it from an image.
///
/// # Errors
/// If the backbone is an ONNX model with too old an operator set, or a network that another crate implements.
pub fn onnx_model(predictor: &Predictor, backbone: &Backbone) -> Result<OnnxGraph> {
    let preprocessing = backbone.preprocessing();
    let mut graph = match (backbone.parameters(), backbone.onnx()) {
        // Conv4 or EfficientNet-Lite0.
        (Some(parameters), _) => {
            let mut graph = OnnxGraph::new();
            let image = graph.input(INPUT, ElementType::Byte, &input_shape(preprocessing, Axis::Batch));
            let image = add_normalisation(&mut graph, &image, preprocessing);
            let image = add_channels_first(&mut graph, &image);
            let embedding = match parameters {
                Parameters::Conv4(values) => {
                    let layout = conv4::layout(preprocessing.channels.count());
                    add_conv4(&mut graph, &image, &NamedTensors { layout, values })
                }
                Parameters::EfficientNet(values) => {
                    let tensors = NamedTensors { layout: efficientnet::layout(), values };
                    add_efficientnet(&mut graph, &image, preprocessing.size, &tensors)
                }
            };
            predictor.add_to_graph(&mut graph, &embedding, &OutputNames::default(), Axis::Batch);
            graph
        }
        // An ONNX model. Names that it uses already get a prefix, and images are cast to the type of its input.
        (None, Some(network)) => {
            let model = network.export(backbone.name())?;
            let mut graph = OnnxGraph::for_model(&model.imported, &model.prefix);
            let batch = if model.is_batch_fixed { Axis::Fixed(1) } else { Axis::Batch };
            let shape = input_shape(preprocessing, batch);
            let image = graph.input(&model.unused_name(INPUT), ElementType::Byte, &shape);
            let mut image = add_normalisation(&mut graph, &image, preprocessing);
            if model.has_channels_first {
                image = add_channels_first(&mut graph, &image);
            }
            let image = add_cast(&mut graph, image, ElementType::Float as u64, model.input_type);
            graph.alias(&image, &model.input);
            graph.import(&model.imported);
            let output = GraphValue::named(&model.output);
            let output = add_cast(&mut graph, output, model.output_type, ElementType::Float as u64);
            let embedding = add_row(&mut graph, &output, &model);
            let OutputNames { probabilities, unknown } = OutputNames::default();
            let names = OutputNames {
                probabilities: model.unused_name(&probabilities),
                unknown: model.unused_name(&unknown),
            };
            predictor.add_to_graph(&mut graph, &embedding, &names, batch);
            graph
        }
        (None, None) => {
            let problem = "it is computed by another program, so it cannot be exported".into();
            return Err(Error::NotABackbone { path: backbone.name().into(), problem });
        }
    };
    graph.set_metadata("embedder", backbone.name());
    graph.set_metadata("preprocessing", preprocessing_note(preprocessing));
    Ok(graph)
}

/// The parameters and the preprocessing of a Conv4 or an EfficientNet-Lite0 as a safetensors file, which
/// `trueshot-wasm` reads; `None` for other networks. A tensor whose values are 16-bit floats is stored as such.
pub fn network_file(backbone: &Backbone) -> Option<Vec<u8>> {
    let preprocessing = backbone.preprocessing();
    let (architecture, layout, values) = match backbone.parameters()? {
        Parameters::Conv4(values) => {
            (CONV4_ARCHITECTURE, conv4::layout(preprocessing.channels.count()), values)
        }
        Parameters::EfficientNet(values) => (EFFICIENTNET_ARCHITECTURE, efficientnet::layout(), values),
    };
    let mut file = model::named(&layout, values);
    write_preprocessing_notes(&mut file, preprocessing, architecture);
    // The name of an enum's variant, such as `crop`.
    let variant = |value: serde_json::Value| value.as_str().unwrap_or_default().to_string();
    file.set_note("fit", variant(json!(preprocessing.fit)));
    file.set_note("resampling", variant(json!(preprocessing.resampling)));
    Some(file.to_compact_bytes())
}

/// The preprocessing of an image before it is given to the model, as JSON.
fn preprocessing_note(preprocessing: &Preprocessing) -> String {
    let Preprocessing { size, channels, fit, resampling, .. } = preprocessing;
    let colours = match channels {
        Channels::Grey => "grey",
        Channels::Colour => "rgb",
    };
    json!({ "size": size, "colours": colours, "fit": fit, "resampling": resampling }).to_string()
}

/// The shape of the input: `[batch, rows, columns, channels]`.
fn input_shape(preprocessing: &Preprocessing, batch: Axis) -> [Axis; 4] {
    let side = Axis::Fixed(preprocessing.size);
    [batch, side, side, Axis::Fixed(preprocessing.channels.count())]
}

/// From bytes to normalised numbers, `[batch, rows, columns, channels]`.
fn add_normalisation(graph: &mut OnnxGraph, image: &GraphValue, preprocessing: &Preprocessing) -> GraphValue {
    let pairs = preprocessing.scale_and_shift(255.0);
    let count = preprocessing.channels.count();
    // The scales (0) or the shifts (1) of all channels.
    let column = |index: usize| pairs.iter().take(count).map(|pair| pair[index]).collect::<Vec<f32>>();
    let (scale, shift) = (graph.floats(&[count], &column(0)), graph.floats(&[count], &column(1)));
    let floats = graph.node("Cast", &[image], &[Attribute::Int("to", ElementType::Float as i64)]);
    let scaled = graph.node("Mul", &[&floats, &scale], &[]);
    graph.node("Add", &[&scaled, &shift], &[])
}

/// From `[batch, rows, columns, channels]` to `[batch, channels, rows, columns]`.
fn add_channels_first(graph: &mut OnnxGraph, image: &GraphValue) -> GraphValue {
    graph.node("Transpose", &[image], &[Attribute::Ints("perm", &[0, 3, 1, 2])])
}

/// Casts a value from type `from` to type `to`, given as ONNX type numbers.
fn add_cast(graph: &mut OnnxGraph, value: GraphValue, from: u64, to: u64) -> GraphValue {
    if from == to { value } else { graph.node("Cast", &[&value], &[Attribute::Int("to", to as i64)]) }
}

/// The output of an ONNX backbone as one row per image, by the rules of [`crate::onnx`]: feature maps are averaged; of
/// tokens, the first is taken.
fn add_row(graph: &mut OnnxGraph, output: &GraphValue, model: &crate::onnx::ExportedModel) -> GraphValue {
    match model.output_rank {
        3 => {
            let first = graph.integers(&[0]);
            let token = graph.node("Gather", &[output, &first], &[Attribute::Int("axis", 1)]);
            graph.node("Flatten", &[&token], &[Attribute::Int("axis", 1)])
        }
        4 => {
            let planes =
                if model.has_channels_first { output.clone() } else { add_channels_first(graph, output) };
            let means = graph.node("GlobalAveragePool", &[&planes], &[]);
            graph.node("Flatten", &[&means], &[Attribute::Int("axis", 1)])
        }
        _ => output.clone(),
    }
}

/// The parameters of a network by name.
struct NamedTensors<'a> {
    layout: ParameterLayout,
    values: &'a [f32],
}

impl NamedTensors<'_> {
    /// Adds a tensor as a constant with the given shape.
    fn add(&self, graph: &mut OnnxGraph, name: &str, shape: &[usize]) -> GraphValue {
        let tensor = self.layout.tensors().iter().find(|tensor| tensor.name == name);
        let tensor = tensor.unwrap_or_else(|| panic!("the layout has a tensor '{name}'"));
        graph.floats(shape, &self.values[tensor.range.clone()])
    }
}

/// Adds the layers of a Conv4: four blocks of convolution, batch norm, ReLU and max pooling. `image` is `[batch,
/// channels, rows, columns]`, normalised; returns the embeddings, `[batch, features]`.
fn add_conv4(graph: &mut OnnxGraph, image: &GraphValue, tensors: &NamedTensors<'_>) -> GraphValue {
    let mut value = image.clone();
    for block in 1..=conv4::BLOCKS {
        let name = |part: &str| format!("block{block}.{part}");
        // Input channels: of the image, which its weights `[filters, channels, 3, 3]` know, or of the block before.
        let inputs = if block == 1 { tensors.layout.tensors()[0].shape[1] } else { conv4::WIDTH };
        let weight = tensors.add(graph, &name("conv.weight"), &[conv4::WIDTH, inputs, 3, 3]);
        let [bias, scale, shift, mean, variance] =
            ["conv.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
                .map(|part| tensors.add(graph, &name(part), &[conv4::WIDTH]));
        let convolved = graph.node(
            "Conv",
            &[&value, &weight, &bias],
            &[Attribute::Ints("kernel_shape", &[3, 3]), Attribute::Ints("pads", &[1, 1, 1, 1])],
        );
        let normalised = graph.node(
            "BatchNormalization",
            &[&convolved, &scale, &shift, &mean, &variance],
            &[Attribute::Float("epsilon", conv4::EPSILON)],
        );
        let activated = graph.node("Relu", &[&normalised], &[]);
        value = graph.node(
            "MaxPool",
            &[&activated],
            &[Attribute::Ints("kernel_shape", &[2, 2]), Attribute::Ints("strides", &[2, 2])],
        );
    }
    graph.node("Flatten", &[&value], &[Attribute::Int("axis", 1)])
}

/// Adds the layers of an EfficientNet-Lite0 for images of `size` x `size` pixels: a stem, bottlenecks (a pointwise
/// convolution to more channels, a depthwise one, and a pointwise one to fewer), and a head whose features are
/// averaged. ReLU6 limits activations to [0, 6]. Returns the embeddings, `[batch, 1280]`.
fn add_efficientnet(
    graph: &mut OnnxGraph,
    image: &GraphValue,
    size: usize,
    tensors: &NamedTensors<'_>,
) -> GraphValue {
    use efficientnet::{FEATURES, STEM};

    let stem = Convolution { kernel: 3, stride: 2, inputs: 3, outputs: STEM, groups: 1 };
    let convolved = stem.add(graph, image, size, (tensors, "stem"));
    let (mut value, mut side) = (graph.clip(&convolved, [0.0, 6.0]), stem.output_side(size));
    let mut channels = STEM;
    for (number, block) in (1..).zip(efficientnet::bottlenecks()) {
        let name = |part: &str| format!("block{number}.{part}");
        let mut inner = value.clone();
        if block.expands() {
            let expand = Convolution::pointwise(block.input, block.inner);
            let expanded = expand.add(graph, &inner, side, (tensors, &name("expand")));
            inner = graph.clip(&expanded, [0.0, 6.0]);
        }
        let (kernel, stride) = (block.kernel, block.stride);
        let depthwise = Convolution { kernel, stride, inputs: 1, outputs: block.inner, groups: block.inner };
        let filtered = depthwise.add(graph, &inner, side, (tensors, &name("depthwise")));
        let filtered = graph.clip(&filtered, [0.0, 6.0]);
        side = depthwise.output_side(side);
        let project = Convolution::pointwise(block.inner, block.output);
        let projected = project.add(graph, &filtered, side, (tensors, &name("project")));
        // The residual connection.
        value = if block.adds_input() { graph.node("Add", &[&projected, &value], &[]) } else { projected };
        channels = block.output;
    }
    let head = Convolution::pointwise(channels, FEATURES);
    let features = head.add(graph, &value, side, (tensors, "head"));
    let features = graph.clip(&features, [0.0, 6.0]);
    let means = graph.node("GlobalAveragePool", &[&features], &[]);
    graph.node("Flatten", &[&means], &[Attribute::Int("axis", 1)])
}

/// A convolution of an EfficientNet with `SAME` padding: the output has `side / stride` pixels per side, rounded up.
struct Convolution {
    /// Height and width of the filters.
    kernel: usize,
    stride: usize,
    /// Input channels per filter.
    inputs: usize,
    outputs: usize,
    groups: usize,
}

impl Convolution {
    /// A convolution of single pixels, with filters of 1 x 1.
    fn pointwise(inputs: usize, outputs: usize) -> Self {
        Convolution { kernel: 1, stride: 1, inputs, outputs, groups: 1 }
    }

    /// The height and width of the output for an input of height and width `side`.
    fn output_side(&self, side: usize) -> usize {
        efficientnet::same_padding(side, self.kernel, self.stride).0
    }

    /// Adds the convolution of an input with height and width `side`; `name` is the prefix of its tensors.
    fn add(
        &self,
        graph: &mut OnnxGraph,
        input: &GraphValue,
        side: usize,
        (tensors, name): (&NamedTensors<'_>, &str),
    ) -> GraphValue {
        let Convolution { kernel, stride, inputs, outputs, groups } = *self;
        let weight = tensors.add(graph, &format!("{name}.weight"), &[outputs, inputs, kernel, kernel]);
        let bias = tensors.add(graph, &format!("{name}.bias"), &[outputs]);
        // Output pixels per side, and the padding before and after the input.
        let (positions, before) = efficientnet::same_padding(side, kernel, stride);
        // The last filter starts at `(positions - 1) * stride` of the padded input; what it needs beyond the input is
        // padding.
        let after = ((positions - 1) * stride + kernel).saturating_sub(side + before);
        let [kernel, stride, before, after, groups] =
            [kernel, stride, before, after, groups].map(|number| number as i64);
        graph.node(
            "Conv",
            &[input, &weight, &bias],
            &[
                Attribute::Ints("kernel_shape", &[kernel, kernel]),
                Attribute::Ints("strides", &[stride, stride]),
                Attribute::Ints("pads", &[before, before, after, after]),
                Attribute::Int("group", groups),
            ],
        )
    }
}
