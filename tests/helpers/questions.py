"""SQuAD files."""

import json


def write_squad(path, questions, version='v2.0'):
    """A file in SQuAD's format, an article and a paragraph for each question."""
    data = []
    for asked in questions:
        answers = [{'text': text, 'answer_start': start} for text, start in asked.answers]
        one = {'id': asked.id, 'question': asked.text, 'is_impossible': not answers, 'answers': answers}
        data.append({'title': 't', 'paragraphs': [{'context': asked.context, 'qas': [one]}]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({'version': version, 'data': data}), encoding='utf-8')
    return path
