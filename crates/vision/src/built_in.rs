//! The built-in models: EfficientNet-Lite0 for photographs, and for drawings a Conv4 trained on Omniglot and a TraNFS
//! head for its embeddings. The latter two were trained on the classes of the split `train` only.
//!
//! `docs/built-in.md` has the commands that made them.

use rayon::prelude::*;
use trueshot::model::Model;
use trueshot::tensors::Tensors;

use crate::backbone::{Backbone, EFFICIENTNET_ARCHITECTURE};
use crate::drawing::Bitmap;
use crate::embed::resize_for_training;
use crate::error::Result;

static EFFICIENTNET_BYTES: &[u8] = include_bytes!("../assets/efficientnet-lite0.safetensors");
static CONV4_BYTES: &[u8] = include_bytes!("../assets/omniglot-conv4.safetensors");

/// The name of the backbone for drawings.
pub const OMNIGLOT_CONV4: &str = "omniglot-conv4";

/// Drawings that a thread embeds per call of the network.
const DRAWINGS_PER_CALL: usize = 32;

/// The backbone for drawings.
pub fn omniglot_conv4() -> Result<Backbone> {
    Backbone::from_tensors(&Tensors::read_bytes(CONV4_BYTES.to_vec(), OMNIGLOT_CONV4)?, OMNIGLOT_CONV4)
}

/// The tensors of a built-in backbone; `None` if no built-in backbone has that name.
pub(crate) fn tensors(name: &str) -> Option<Result<Tensors>> {
    let bytes = match name {
        EFFICIENTNET_ARCHITECTURE => EFFICIENTNET_BYTES,
        OMNIGLOT_CONV4 => CONV4_BYTES,
        _ => return None,
    };
    Some(Tensors::read_bytes(bytes.to_vec(), name).map_err(Into::into))
}

/// The TraNFS head for embeddings of `omniglot-conv4`, for up to ten classes. (TraNFS is the transformer of the paper
/// that computes class prototypes from a support set with wrong labels.) In a program without the built-in drawings
/// (Cargo feature `drawings`), it is read from the folder that the environment variable `TRUESHOT_ASSETS` names.
pub fn omniglot_tranfs() -> Result<Model> {
    #[cfg(feature = "drawings")]
    let bytes = trueshot_omniglot::TRANFS;
    #[cfg(not(feature = "drawings"))]
    let bytes = &crate::omniglot::read_external_asset("omniglot-tranfs.safetensors")?;
    Ok(Model::read_bytes(bytes, "omniglot-tranfs")?)
}

/// Embeds drawings on all threads. Returns `[drawing, dim]`.
///
/// # Panics
/// If the network fails, which Conv4 and EfficientNet-Lite0 do not.
pub fn embed_drawings(backbone: &Backbone, drawings: &[Bitmap]) -> Vec<f32> {
    let mut features = vec![0.0; drawings.len() * backbone.dim()];
    let blocks = drawings
        .par_chunks(DRAWINGS_PER_CALL)
        .zip(features.par_chunks_mut(DRAWINGS_PER_CALL * backbone.dim()));
    blocks.for_each_init(
        || backbone.session(),
        |session, (drawings, out)| {
            let outcome = session.embed(&network_inputs(backbone, drawings), out);
            outcome.expect("a Conv4 or EfficientNet-Lite0 does not fail");
        },
    );
    features
}

/// The normalised inputs of the network: `[drawing, row, column, channel]`.
fn network_inputs(backbone: &Backbone, drawings: &[Bitmap]) -> Vec<f32> {
    let to = backbone.preprocessing();
    let mut inputs = vec![0.0; drawings.len() * to.input_len()];
    for (drawing, input) in drawings.iter().zip(inputs.chunks_exact_mut(to.input_len())) {
        // The networks were trained on drawings that were resized in this way.
        to.normalise(&resize_for_training(drawing.to_image(to.channels), to, false), input);
    }
    inputs
}
