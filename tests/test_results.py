"""The runs behind the results can be made again: what makes them names commands and flags that exist, and
commits that are in the history. Nothing lies there that no page names.
"""

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import tarfile

import pytest
from helpers.commands import succeed
from helpers.documents import RUNS, check_command, commands, text_of
from helpers.pruned import recipe_for
from helpers.tiny import ROOT
from points import read_points

from gluon_optbert.finetuning.recipes import GlueRecipe
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe
from gluon_optbert.reproduction.study_page import write_study
from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.files import sha256
from gluon_optbert.runs.recipe import load_yaml, to_dict
from gluon_optbert.training.recipe import PretrainRecipe

# Of a recipe: places, what changes no number, and gates of methods that train none.
ELSEWHERE = set('output model data ranking resume checkpoint_every log_every target timing'.split())


@pytest.mark.parametrize(
    'path', sorted((ROOT / 'results').rglob('README.md')), ids=lambda path: path.parent.name
)
def test_commands_of_the_pages_exist(path):
    makefile = path.with_name('Makefile')
    text = text_of(makefile).replace('\\\n', ' ') if makefile.exists() else ''
    made = [line.lstrip('# ').strip() for line in text.splitlines() if RUNS.search(line)]
    for line in [*commands(path), *made]:
        if '$' not in line:  # else a loop of the shell, or a variable of make
            check_command(line)


def make(place, *words):
    """Output of make in a folder, its lines joined where they go on."""
    done = subprocess.run(['make', '-C', str(place), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace('\\\n', ' ')


def lines_of(name, *words):
    """The command lines that make would run in a folder of the results, all of which exist."""
    said = make(ROOT / 'results' / name, '-n', 'WORK=some/work', 'PYTHON=python', *words)
    lines = [line for line in said.splitlines() if RUNS.search(line)]
    for line in lines:
        check_command(line)
    return lines


def test_every_run_of_pruning_is_a_recipe_of_its_own():
    """make would run it, with its size, steps and seed; relative paths are those from the root."""
    lines = lines_of('pruning', 'DATA=some/data', 'CHECKPOINT=some/minilm')
    assert len(lines) > 80
    for place in (f'cd {ROOT}/some/work && ', f' {ROOT}/some/minilm '):
        assert any(place in line for line in lines)
    names = []
    for line in lines:
        if 'run_prune.py' in line:
            words = shlex.split(line[line.index('run_prune.py') :].partition(';')[0])[1:]
            recipe = parse(PruneRecipe, words, description='', example='')
            names.append(recipe.output.name)
            _, size, seed = recipe.output.name.split('-')
            assert recipe.targets[-1] == float(f'0.{size}') and recipe.seed == int(seed)
            assert recipe.recovery_steps > 0
    assert len(set(names)) == len(names) > 20


def test_runs_for_tasks_have_the_recipes_that_are_recorded():
    made = {}
    for line in lines_of('tasks', 'DATA=d', 'BASE=b'):
        if 'run_prune.py' in line:
            words = shlex.split(line[line.index('run_prune.py') :])[1:]
            recipe = to_dict(parse(TaskPruneRecipe, words, description='', example=''))
            made[recipe['output']] = recipe
    for task in ('sst2', 'mrpc', 'mnli', 'squad'):
        files = (ROOT / 'results' / 'tasks' / task).glob('*.json')
        runs = {name: run for file in files for name, run in read_points(file)['runs'].items()}
        assert len(runs) > 3 and set(runs) <= set(made)
        for name, run in runs.items():
            for field, value in run['recipe'].items():
                if field not in ELSEWHERE and field in made[name]:
                    assert made[name][field] == value, f'{name}: {field}'


@pytest.mark.parametrize('name, words, least', [('recovery', (), 20), ('tables', ('study', 'table'), 2)])
def test_commands_of_a_study_exist(name, words, least):
    lines = lines_of(name, *words)
    assert len(lines) >= least and all(f'cd {ROOT}/some/work && ' in line for line in lines)


def test_the_study_of_the_tables_says_every_setting_that_its_runs_would_have_now():
    """Else it could not be gone on with: a run is refused that was begun with other settings."""
    with tarfile.open(ROOT / 'results' / 'tables' / 'study.tar.xz') as study:
        runs = [one for one in study.getmembers() if one.name.endswith('/recipe.yaml')]
        recipes = {
            one.name.split('/', 1)[1]: load_yaml(study.extractfile(one).read(), source=one.name)
            for one in runs
        }
    for kind, classes in (('networks/', (PruneRecipe, PretrainRecipe)), ('cells/', (GlueRecipe,))):
        fields = {name: set(recipe) for name, recipe in recipes.items() if name.startswith(kind)}
        known = [set(cls.model_fields) - set(cls.OF_THE_CALL) for cls in classes]
        assert len(fields) > 8 and all(found in known for found in fields.values())


def test_tables_that_are_shown_are_those_that_the_studies_render(tmp_path):
    shown = ROOT / 'results' / 'tables' / 'study'
    beside = re.search('^BESIDE_study := (.*)', (shown.parent / 'Makefile').read_text(), re.MULTILINE)
    names = ['study', *beside[1].split()]
    for name in names:
        with tarfile.open(shown.parent / f'{name}.tar.xz') as study:
            study.extractall(tmp_path)
    study, *others = (tmp_path / name for name in names)
    rendered = {path.name: path for path in write_study(study, others)}
    pages = sorted(path for path in shown.iterdir() if path.suffix == '.md')
    assert len(pages) > 1 and {path.name for path in shown.iterdir()} <= set(rendered)
    for path in pages:
        assert path.read_bytes() == rendered[path.name].read_bytes(), path.name


def test_what_has_ended_is_collected_and_compared(shards_directory, model_directory, tmp_path):
    work, place = tmp_path / 'work', tmp_path / 'results'
    shutil.copytree(model_directory, work / 'base')
    (work / 'scores').mkdir()
    for way, steps in (('paper', 2), ('all', 4)):
        output = work / 'runs' / f'{way}-60-1'
        settings = {'target': 0.6, 'rounds': 1, 'recovery_steps': steps, 'keep_best': False}
        prune(recipe_for(shards_directory, work / 'base', output, **settings))
        (output / 'verified.json').write_text('{"stages": []}')
        result = {'metric': 'dev/accuracy', 'task': 'SST-2', 'mean': {'dev/accuracy': 81.25}}
        result |= {'format': 'gluon_optbert fine-tuning'}
        result |= {'model_sha256': sha256(output / 'round-1' / 'model' / 'model.params')}
        (work / 'scores' / f'{way}-60-1-sst2.json').write_text(json.dumps(result))
    (work / 'runs' / 'all-60-2').mkdir()  # which has not ended
    place.mkdir()
    shutil.copy(ROOT / 'results' / 'pruning' / 'Makefile', place)
    shutil.copy(ROOT / 'results' / 'paths.mk', place.parent)
    for words in (['collect', f'WORK={work}'], ['table']):
        for line in make(place, '-n', 'PYTHON=python', f'ROOT={ROOT}', *words).splitlines():
            if line.startswith('python '):
                succeed(*shlex.split(line)[1:], cwd=place)
    text = (place / 'comparison' / 'table.md').read_text()
    assert text.count('| 81.2 |') == 2 and '| 30 steps of gates |' in text and '| not pruned |' in text
    assert not (place / 'rates').exists()


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='no git checkout, which has the commits')
def test_commits_of_the_results_are_in_the_history():
    def git(*words):
        return subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    if git('rev-parse', '--is-shallow-repository') != 'false\n':
        pytest.skip('a shallow clone has no history')
    known = set(git('rev-list', 'HEAD').split())
    for path in (ROOT / 'results').rglob('*.json'):
        named = re.findall(r'"([0-9a-f]{40})\+?"', path.read_text(encoding='utf-8'))
        assert set(named) <= known, path


def test_every_file_of_the_results_is_named_by_a_page_whose_links_lead_to_files():
    results = ROOT / 'results'
    for page in results.rglob('*.md'):
        for target in re.findall(r'\]\(([^)#\s]+)[^)]*\)', text_of(page)):
            assert (page.parent / target).exists(), f'{page}: {target}'
    for path in results.rglob('*'):
        if path.is_file() and path.name not in ('README.md', 'Makefile'):
            above = [place for place in path.parents if results in (place, *place.parents)]
            pages = [page for place in above if (page := place / 'README.md').exists()]
            words = {word for page in pages for word in re.findall(r'[\w.*-]*\w[\w.*-]*', text_of(page))}
            assert any(fnmatch.fnmatch(path.name, word) for word in words), path


def test_no_file_names_a_place_of_the_machine_that_made_it():
    files = [*(ROOT / 'results').rglob('*.json'), *(ROOT / 'results').rglob('*.yaml')]
    found = [place for path in files for place in re.findall(r'["\' ](?:/\w+){2}', text_of(path))]
    assert len(files) > 50 and found == []
