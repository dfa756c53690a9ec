"""The keywords of JSON Schema that a grammar enforces, and those that constrain nothing.

Any other keyword is refused, or left out and named: accepting it in silence would promise what no mask can hold.
Source: https://json-schema.org/draft/2020-12/json-schema-validation,
https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md
"""

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})

SUBSCHEMA_KEYWORDS = frozenset({"additionalProperties", "items"})
SUBSCHEMA_LIST_KEYWORDS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SUBSCHEMA_MAP_KEYWORDS = frozenset({"patternProperties", "properties"})
COUNT_KEYWORDS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
NUMBER_KEYWORDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
VALUE_KEYWORDS = frozenset({"$ref", "const", "enum", "format", "pattern", "required", "type"})

# Keywords that no value can violate. Definitions are read where a `$ref` leads to them.
ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "default",
        "definitions", "deprecated", "description", "discriminator", "enumDescriptions", "enumNames", "example",
        "examples", "externalDocs", "id", "markdownDescription", "propertyOrdering", "readOnly", "title",
        "writeOnly", "xml",
    }
)  # fmt: skip
# Annotations that say what a text is; no value violates them, though a client may hope so.
CONTENT_ANNOTATIONS = frozenset({"contentEncoding", "contentMediaType", "contentSchema"})
# Keywords that are not enforced, with the values at which they constrain nothing.
NEUTRAL_VALUES = {
    "nullable": (False, True),  # it adds null to the types
    "unevaluatedItems": (True,),
    "unevaluatedProperties": (True,),
    "uniqueItems": (False,),
}
# Keywords that hold for what others of the same schema do not name.
DEPENDENT = {"additionalProperties": ("properties", "patternProperties"), "items": ("prefixItems",)}
# How to write what an unenforceable keyword means, where there is a way.
REMEDIES = {
    "additionalItems": "Write the tuple as 'prefixItems' and 'items'.",
    "dependencies": "List the combinations under 'anyOf'.",
    "dependentRequired": "List the combinations under 'anyOf'.",
    "dependentSchemas": "List the combinations under 'anyOf'.",
    "if": "List the cases under 'anyOf'.",
    "nullable": "Write 'type': [TYPE, 'null'].",
    "propertyNames": "Use 'patternProperties' and 'additionalProperties': false.",
}
