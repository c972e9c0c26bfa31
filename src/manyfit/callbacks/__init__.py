"""What is measured, saved, shown and told while a model trains; each module owns one Keras callback."""
