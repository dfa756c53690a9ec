"""Every error that clients and operators can encounter.

    ServiceError
    ├── RequestError                   400 invalid_request_error; answers one request
    │   ├── InvalidParameter               (param)
    │   ├── UnsupportedParameter           (param) known, but not supported here
    │   ├── UnknownParameter               (param) not part of any known interface
    │   ├── MissingParameter               (param)
    │   ├── PreviousResponseNotFound       (response_id)
    │   ├── ConstraintError                the grammar rejects every continuation
    │   ├── ContextLengthExceeded          (prompt_tokens, max_tokens, max_model_len)
    │   ├── TextTooLong                    (num_tokens, max_model_len)
    │   ├── WrongKindOfModel               (model)
    │   ├── AmbiguousModel                 (model, candidates)
    │   ├── TemplateFailed                 (reason) the chat template exceeds its limits
    │   ├── BodyTooLaborious               (reason) processing takes too much time or memory
    │   ├── AudioTooLaborious              (reason) decoding takes too much time or memory
    │   ├── UnreadableAudio                (reason)
    │   ├── ImageTooLaborious              (reason) decoding takes too much time or memory
    │   ├── UnreadableImage                (reason)
    │   ├── PdfTooLaborious                (reason) reading takes too much time or memory
    │   ├── UnreadablePdf                  (reason)
    │   ├── MalformedRequest           400, 431
    │   ├── InvalidApiKey              401
    │   ├── PriorityNotAllowed         403
    │   ├── HostNotAllowed             403 (name)
    │   ├── UnknownRoute               404
    │   ├── UnknownModel               404 (model, served)
    │   ├── UnknownObject              404 (kind, object_id) a file, a batch or a response
    │   ├── MethodNotAllowed           405
    │   ├── BodyTooSlow                408 (limit_s)
    │   ├── AudioTooLong               413 (limit_s)
    │   ├── ImageTooLarge              413 (limit_pixels)
    │   ├── BodyTooLarge               413 (limit_bytes, setting)
    │   ├── FilesFull                  413 (taken_bytes, limit_bytes)
    │   ├── UnsupportedMediaType       415
    │   ├── ClientDisconnected         499
    │   ├── Overloaded                 429 (running, limit, retry_after_s)
    │   │   └── QueueFull, QueuedTokensFull, BodyBytesFull, LongBodiesFull
    │   ├── QueueTimeout               503 (limit_s)
    │   ├── TooManyConnections         503 (limit)
    │   ├── NotReady                   503 (retry_after_s)
    │   ├── ModelNotLoaded             503 (model, retry_after_s)
    │   ├── ModelLoadFailed            503 (model, reason)
    │   ├── Draining                   503
    │   ├── FilesUnavailable           503
    │   ├── WorkerBusy                 503 (limit_s)
    │   ├── WorkerKilled               503 the process that worked on the request was ended from outside
    │   ├── ResponsesUnavailable       503
    │   └── DeadlineExceeded           504 (limit_s)
    ├── EngineError                    500 server_error
    │   ├── NonFiniteLogits                one sequence
    │   ├── NonFiniteVector                (index) one text
    │   └── EngineStopped              503 the device thread has ended
    └── StartError                     aborts the start with one line and exit code 1
        ├── SettingsError                  (variable)
        ├── CannotListen                   (host, port)
        │   └── PortInUse
        ├── UnknownDeviceMemory            (platform, device_kind)
        ├── UnusableAccelerator            (device_file, package)
        ├── TargetUnavailable              (target, reason)
        ├── DoesNotFit                     (needed_bytes, available_bytes)
        └── CheckpointError                (uri)
            ├── CheckpointNotFound, AccessDenied, MissingFile, AmbiguousCheckpoint
            ├── MissingExtra               (extra) an optional part of Levserve is not installed
            ├── UnsupportedModel           a model_type, or a feature
            ├── PickledWeights             (files)
            ├── MalformedCheckpoint        (file) invalid headers, wrong shapes, bad JSON
            │   └── RefusedPickle              (name) something other than tensors
            ├── RefusedAdapter             (file, field) another base, or a kind that is not served
            ├── UnquantizableWeights       (tensor) 8 bits cannot represent a row
            ├── NonFiniteWeights           (tensors) the first answer is NaN or infinite
            ├── HostileName                (name)
            ├── CorruptObject              (name, expected, actual)
            ├── ObjectChanged              (name, generation)
            ├── GenerationGone             (name, generation)
            ├── NotDownloaded
            ├── TransferFailed             (name)
            └── StorageFull                (needed_bytes, free_bytes)

Details are fields, so that no caller has to parse a message; the message states cause and remedy. Errors are imported
from this package only, which import-linter checks.
"""

from service.errors.checkpoint import (
    AccessDenied,
    AmbiguousCheckpoint,
    CheckpointError,
    CheckpointNotFound,
    CorruptObject,
    GenerationGone,
    HostileName,
    MalformedCheckpoint,
    MissingExtra,
    MissingFile,
    NonFiniteWeights,
    NotDownloaded,
    ObjectChanged,
    PickledWeights,
    RefusedAdapter,
    RefusedPickle,
    StorageFull,
    TransferFailed,
    UnquantizableWeights,
    UnsupportedModel,
)
from service.errors.engine import (
    EngineError,
    EngineStopped,
    NonFiniteLogits,
    NonFiniteVector,
)
from service.errors.request import (
    AmbiguousModel,
    AudioTooLaborious,
    AudioTooLong,
    BodyBytesFull,
    BodyTooLaborious,
    BodyTooLarge,
    BodyTooSlow,
    ClientDisconnected,
    ConstraintError,
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    FilesFull,
    FilesUnavailable,
    HostNotAllowed,
    ImageTooLaborious,
    ImageTooLarge,
    InvalidApiKey,
    InvalidParameter,
    LongBodiesFull,
    MalformedRequest,
    MethodNotAllowed,
    MissingParameter,
    ModelLoadFailed,
    ModelNotLoaded,
    NotReady,
    Overloaded,
    PdfTooLaborious,
    PreviousResponseNotFound,
    PriorityNotAllowed,
    QueuedTokensFull,
    QueueFull,
    QueueTimeout,
    RequestError,
    ResponsesUnavailable,
    TemplateFailed,
    TextTooLong,
    TooManyConnections,
    UnknownModel,
    UnknownObject,
    UnknownParameter,
    UnknownRoute,
    UnreadableAudio,
    UnreadableImage,
    UnreadablePdf,
    UnsupportedMediaType,
    UnsupportedParameter,
    WorkerBusy,
    WorkerKilled,
    WrongKindOfModel,
)
from service.errors.root import ServiceError
from service.errors.start import (
    CannotListen,
    DoesNotFit,
    PortInUse,
    SettingsError,
    StartError,
    TargetUnavailable,
    UnknownDeviceMemory,
    UnusableAccelerator,
)

__all__ = [
    "AccessDenied",
    "AmbiguousCheckpoint",
    "AmbiguousModel",
    "AudioTooLaborious",
    "AudioTooLong",
    "BodyBytesFull",
    "BodyTooLaborious",
    "BodyTooLarge",
    "BodyTooSlow",
    "CannotListen",
    "CheckpointError",
    "CheckpointNotFound",
    "ClientDisconnected",
    "ConstraintError",
    "ContextLengthExceeded",
    "CorruptObject",
    "DeadlineExceeded",
    "DoesNotFit",
    "Draining",
    "EngineError",
    "EngineStopped",
    "FilesFull",
    "FilesUnavailable",
    "GenerationGone",
    "HostNotAllowed",
    "HostileName",
    "ImageTooLaborious",
    "ImageTooLarge",
    "InvalidApiKey",
    "InvalidParameter",
    "LongBodiesFull",
    "MalformedCheckpoint",
    "MalformedRequest",
    "MethodNotAllowed",
    "MissingExtra",
    "MissingFile",
    "MissingParameter",
    "ModelLoadFailed",
    "ModelNotLoaded",
    "NonFiniteLogits",
    "NonFiniteVector",
    "NonFiniteWeights",
    "NotDownloaded",
    "NotReady",
    "ObjectChanged",
    "Overloaded",
    "PdfTooLaborious",
    "PickledWeights",
    "PortInUse",
    "PreviousResponseNotFound",
    "PriorityNotAllowed",
    "QueueFull",
    "QueueTimeout",
    "QueuedTokensFull",
    "RefusedAdapter",
    "RefusedPickle",
    "RequestError",
    "ResponsesUnavailable",
    "ServiceError",
    "SettingsError",
    "StartError",
    "StorageFull",
    "TargetUnavailable",
    "TemplateFailed",
    "TextTooLong",
    "TooManyConnections",
    "TransferFailed",
    "UnknownDeviceMemory",
    "UnknownModel",
    "UnknownObject",
    "UnknownParameter",
    "UnknownRoute",
    "UnquantizableWeights",
    "UnreadableAudio",
    "UnreadableImage",
    "UnreadablePdf",
    "UnsupportedMediaType",
    "UnsupportedModel",
    "UnsupportedParameter",
    "UnusableAccelerator",
    "WorkerBusy",
    "WorkerKilled",
    "WrongKindOfModel",
]
