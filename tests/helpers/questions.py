"""Small files: of any text, and in SQuAD's format."""

import json


def write(path, text):
    """The path, with a text or bytes in it; its directory may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode('utf-8'))
    return path


def write_squad(path, questions, version='v2.0'):
    """A file in SQuAD's format, an article and a paragraph for each question."""
    data = []
    for asked in questions:
        answers = [{'text': text, 'answer_start': start} for text, start in asked.answers]
        one = {'id': asked.id, 'question': asked.text, 'is_impossible': not answers, 'answers': answers}
        data.append({'title': 't', 'paragraphs': [{'context': asked.context, 'qas': [one]}]})
    return write(path, json.dumps({'version': version, 'data': data}))
