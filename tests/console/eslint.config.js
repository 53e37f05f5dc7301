/** Rules of the console's modules; run by `test_javascript.py`. */

const NAME = "Identifier[name=/^(agent|id|server|url)$/], MemberExpression[property.name=/^(agent|id|name|server|url)$/], CallExpression[callee.name='slug']";

module.exports = [
  {
    files: ['static/**/*.js'],
    ignores: ['static/vendor/**'],
    languageOptions: { ecmaVersion: 2023, sourceType: 'module', globals: { ...require('globals').browser } },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      ...require('@eslint/js').configs.recommended.rules,
      eqeqeq: 'error',
      'no-eval': 'error',
      'no-implied-eval': 'error',
      'no-new-func': 'error',
      'no-var': 'error',
      'prefer-const': 'error',
      complexity: ['error', 20],
      'no-loss-of-precision': 'off', // the bounds of JSON schemas
      'no-restricted-properties': [
        'error',
        { property: 'innerHTML', message: 'Render elements.' },
        { property: 'outerHTML', message: 'Render elements.' },
        { property: 'insertAdjacentHTML', message: 'Render elements.' },
      ],
      'no-restricted-syntax': [
        'error',
        { selector: "Identifier[name='dangerouslySetInnerHTML']", message: 'Render elements.' },
        // Every object has `constructor`, which is a legal name of an agent, a server and a field.
        { selector: `MemberExpression[computed=true] > :matches(${NAME}).property`, message: 'Records by name are Maps; `own` reads those of others.' },
      ],
      // The arguments of a tagged template are not followed by the rule for unused names.
      'no-unused-vars': ['error', { args: 'after-used', varsIgnorePattern: '^[A-Z]', argsIgnorePattern: '^_' }],
    },
  },
];
