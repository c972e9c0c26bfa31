"""The formats that a model can be exported to: what they are called, and what lies in the folder of each."""

DYNAMIC, FLOAT16 = QUANTIZATIONS = ("dynamic", "float16")
"""`dynamic`: 8-bit weights, float32 activations; `float16`: 16-bit weights, mostly float32 arithmetic."""

FILE_NAMES = {"keras": "model.keras", "saved_model": "1", "tflite": "model.tflite", "onnx": "model.onnx"}
"""The model in the folder of its format; TensorFlow Serving wants a folder a version, counted."""

LABELS_NAME = "labels.txt"
CARD_NAME = "README.md"

TOLERANCES = {None: 2e-3, FLOAT16: 0.05, DYNAMIC: 0.25}
"""The largest difference of a probability from that of the run's model that is accepted, by quantization. Without
one it is what another runtime's resizing makes, which may round a pixel to the next level."""
