//! The models that are built in: EfficientNet-Lite0 for photographs, a Conv4 trained on the built-in drawings, and a
//! TraNFS head for its embeddings.
//!
//! `docs/built-in.md` has the commands that made them. The latter two saw the characters of the split `train` only.

use rayon::prelude::*;
use trueshot::model::Model;
use trueshot::tensors::Tensors;

use crate::backbone::{Backbone, EFFICIENTNET_ARCHITECTURE};
use crate::drawing::Bitmap;
use crate::embed::resize_for_training;
use crate::error::Result;

static EFFICIENTNET_BYTES: &[u8] = include_bytes!("../assets/efficientnet-lite0.safetensors");
static CONV4_BYTES: &[u8] = include_bytes!("../assets/omniglot-conv4.safetensors");

/// What the backbone for drawings is called.
pub const OMNIGLOT_CONV4: &str = "omniglot-conv4";

/// Drawings that go through the network together.
const DRAWINGS_PER_CALL: usize = 32;

/// The backbone for drawings.
pub fn omniglot_conv4() -> Result<Backbone> {
    Backbone::from_tensors(&Tensors::read_bytes(CONV4_BYTES.to_vec(), OMNIGLOT_CONV4)?, OMNIGLOT_CONV4)
}

/// The tensors of the backbone of a name, if that is built in.
pub(crate) fn tensors(name: &str) -> Option<Result<Tensors>> {
    let bytes = match name {
        EFFICIENTNET_ARCHITECTURE => EFFICIENTNET_BYTES,
        OMNIGLOT_CONV4 => CONV4_BYTES,
        _ => return None,
    };
    Some(Tensors::read_bytes(bytes.to_vec(), name).map_err(Into::into))
}

/// TraNFS for its embeddings, for up to ten classes; where the drawings are, since it is about them only.
pub fn omniglot_tranfs() -> Result<Model> {
    #[cfg(feature = "drawings")]
    let bytes = trueshot_omniglot::TRANFS;
    #[cfg(not(feature = "drawings"))]
    let bytes = &crate::omniglot::read_external_asset("omniglot-tranfs.safetensors")?;
    Ok(Model::read_bytes(bytes, "omniglot-tranfs")?)
}

/// Embeds drawings, one behind the other.
pub fn embed_drawings(backbone: &Backbone, drawings: &[Bitmap]) -> Vec<f32> {
    let mut features = vec![0.0; drawings.len() * backbone.dim()];
    let blocks = drawings
        .par_chunks(DRAWINGS_PER_CALL)
        .zip(features.par_chunks_mut(DRAWINGS_PER_CALL * backbone.dim()));
    blocks.for_each_init(
        || backbone.session(),
        |session, (drawings, out)| {
            let embedded = session.embed(&network_inputs(backbone, drawings), out);
            embedded.expect("networks of our own do not fail");
        },
    );
    features
}

fn network_inputs(backbone: &Backbone, drawings: &[Bitmap]) -> Vec<f32> {
    let to = backbone.preprocessing();
    let mut inputs = vec![0.0; drawings.len() * to.input_len()];
    for (drawing, input) in drawings.iter().zip(inputs.chunks_exact_mut(to.input_len())) {
        to.normalise(&resize_for_training(drawing.to_image(to.channels), to, false), input);
    }
    inputs
}
