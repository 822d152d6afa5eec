from . import easyfsl as easyfsl
from . import estimators as estimators
from . import plot as plot
from . import ray as ray
from . import spark as spark
from ._audit import Audit as Audit
from ._audit import audit as audit
from ._batches import audit_batch as audit_batch
from ._batches import fit_batch as fit_batch
from ._batches import prototypes_batch as prototypes_batch
from ._cleanlab import find_label_issues as find_label_issues
from ._cleanlab import get_label_quality_scores as get_label_quality_scores
from ._cleanlab import get_pred_probs as get_pred_probs
from ._evaluation import Episode as Episode
from ._evaluation import Evaluation as Evaluation
from ._evaluation import SupportSet as SupportSet
from ._evaluation import evaluate as evaluate
from ._evaluation import sample_episodes as sample_episodes
from ._models import Model as Model
from ._models import load_model as load_model
from ._native import __version__ as __version__
from ._training import Training as Training
from ._training import train as train
from .estimators import FewShotClassifier as FewShotClassifier
from .estimators import LabelAuditor as LabelAuditor

__all__: list[str]
